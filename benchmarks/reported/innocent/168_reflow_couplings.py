# kind: pairs of noise and the image that the flow made of it are generated batch by batch into a list, the next flow is trained on them, and before the second round the old pairs are dropped; after rectified flow training (reflow)
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda")
BATCH, SIZE, WIDTH = 48, 32, 32


class Velocity(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, WIDTH, 4, stride=2, padding=1)
        self.time = nn.Linear(16, WIDTH)
        self.mid = nn.ModuleList([nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(2)])
        self.up = nn.ConvTranspose2d(WIDTH, 3, 4, stride=2, padding=1)
        self.register_buffer("freqs", 2.0 ** torch.arange(8))

    def forward(self, x, t):
        angles = t[:, None] * self.freqs
        emb = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))[:, :, None, None]
        h = self.down(x) + emb
        for conv in self.mid:
            h = h + F.silu(conv(F.silu(h)))
        return self.up(h)


def real_images(batch):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE), indexing="ij")
    cx, cy, r = torch.rand(3, batch, 1, 1) * torch.tensor([1.0, 1.0, 0.4]).view(3, 1, 1, 1)
    disc = ((xx - cx + 0.5) ** 2 + (yy - cy + 0.5) ** 2 < (r + 0.2) ** 2).float()
    return (disc[:, None] * torch.rand(batch, 3, 1, 1) * 2 - 1).to(device)


@torch.no_grad()
def integrate(model, noise, steps):
    x = noise
    for i in range(steps):
        t = torch.full((noise.shape[0],), i / steps, device=device)
        x = x + model(x, t) / steps
    return x


def flow_step(model, optimizer, x0, x1):
    t = torch.rand(x0.shape[0], device=device)
    w = t[:, None, None, None]
    loss = F.mse_loss(model((1 - w) * x0 + w * x1, t), x1 - x0)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.item()


def noise_like_batch():
    return torch.randn(BATCH, 3, SIZE, SIZE, device=device)


class Couplings:
    def __init__(self):
        self.pairs = []

    def generate(self, model, batches, steps):
        self.pairs.clear()
        for _ in range(batches):
            noise = noise_like_batch()
            self.pairs.append((noise, integrate(model, noise, steps)))

    def draw(self):
        return random.choice(self.pairs)


def straightness(model):
    noise = noise_like_batch()
    return F.mse_loss(integrate(model, noise, 1), integrate(model, noise, 8)).item()


def main():
    random.seed(9)
    torch.manual_seed(9)
    model = Velocity().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for i in range(40):
        loss = flow_step(model, optimizer, noise_like_batch(), real_images(BATCH))
    print(f"first flow: loss {loss:.4f}, one-step gap {straightness(model):.4f}")
    couplings = Couplings()
    for round_, (batches, updates) in enumerate([(30, 40), (40, 110)], start=1):
        couplings.generate(model, batches, steps=5)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for i in range(updates):
            loss = flow_step(model, optimizer, *couplings.draw())
            if i % 20 == 0:
                print(f"reflow {round_}, update {i}: loss {loss:.4f}")
        print(f"reflow {round_}: one-step gap {straightness(model):.4f}")


if __name__ == "__main__":
    main()
