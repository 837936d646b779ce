# kind: progressive resizing with buffers kept at the present size; from progressive-growing GAN and fastai reports
import torch
import torch.nn as nn
import torch.nn.functional as F


class Denoiser(nn.Module):
    def __init__(self, ch=8):
        super().__init__()
        self.a = nn.Conv2d(3, ch, 3, padding=1)
        self.b = nn.Conv2d(ch, ch, 3, padding=1)
        self.c = nn.Conv2d(ch, 3, 3, padding=1)
        self.last_features = None  # shown in the dashboard

    def forward(self, x):
        h = F.relu(self.a(x))
        h = F.relu(self.b(h)) + h
        self.last_features = h.detach()
        return x - self.c(h)


class FixedNoise:
    """The same noise for each resolution so that the pictures can be compared."""

    def __init__(self, device):
        self.device = device
        self.bank = {}

    def get(self, size, n=16):
        if size not in self.bank:
            g = torch.Generator().manual_seed(size)
            self.bank[size] = torch.randn(n, 3, size, size, generator=g).to(self.device)
        return self.bank[size]


class Learner:
    def __init__(self, model, schedule, device="cuda"):
        self.model = model.to(device)
        self.schedule = schedule
        self.noise = FixedNoise(device)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.device = device

    def images(self, size, n=16):
        coarse = torch.rand(n, 3, 4, 4, device=self.device)
        return F.interpolate(coarse, size=(size, size), mode="bilinear")

    def fit(self):
        step = 0
        for size, steps in self.schedule:
            for _ in range(steps):
                clean = self.images(size)
                noisy = clean + 0.3 * self.noise.get(size)[torch.randperm(16)]
                loss = F.mse_loss(self.model(noisy), clean)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                step += 1
            print(f"step {step} size {size}: {loss.item():.4f}, features {tuple(self.model.last_features.shape)}")


if __name__ == "__main__":
    torch.manual_seed(0)
    Learner(Denoiser(), [(16, 10), (24, 10), (32, 10), (48, 10), (64, 80)]).fit()
