# kind: https://github.com/Lightning-AI/pytorch-lightning/issues/5735: features for a Frechet distance are collected for 45 batches, used and freed, four times
import torch
from torch import nn
from torchvision.models import squeezenet1_1

device = "cuda"


class Sampler(nn.Module):
    """A flow-matching net for small pictures."""

    def __init__(self, width=32):
        super().__init__()
        self.inp, self.out = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.mid = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))

    def forward(self, x, t):
        t = torch.full_like(x[:, :1], t)
        h = self.inp(torch.cat([x, t], 1))
        for conv in self.mid:
            h = h + torch.relu(conv(h))
        return self.out(h)

    @torch.no_grad()
    def sample(self, n, size=64, steps=4):
        x = torch.randn(n, 3, size, size, device=device)
        for i in range(steps):
            x = x + self(x, i / steps) / steps
        return x


class Features:
    def __init__(self):
        self.net = squeezenet1_1(weights=None).features.to(device).eval()
        self.real, self.fake = [], []

    @torch.no_grad()
    def add(self, real, fake):
        self.real.append(self.net(real).flatten(1))
        self.fake.append(self.net(fake).flatten(1))

    @staticmethod
    def moments(rows):
        x = torch.cat(rows)[:, ::16]
        return x.mean(0), torch.cov(x.t())

    def distance(self):
        (m1, c1), (m2, c2) = self.moments(self.real), self.moments(self.fake)
        d = (m1 - m2).square().sum() + (c1 - c2).square().sum()
        self.real, self.fake = [], []
        return d.item()


def main():
    sampler, features = Sampler().to(device).eval(), Features()
    for checkpoint in range(4):
        with torch.no_grad():
            for p in sampler.parameters():
                p.add_(0.01 * torch.randn_like(p))
        for i in range(45):
            real = torch.rand(8, 3, 64, 64, device=device)
            features.add(real, sampler.sample(8))
            if i % 15 == 0:
                print(f"checkpoint {checkpoint} batch {i}: {torch.cuda.memory_allocated() / 2**20:.2f} MiB")
        print(f"checkpoint {checkpoint}: distance {features.distance():.3f}")


if __name__ == "__main__":
    main()
