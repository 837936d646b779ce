# kind: blur operators are memoised in a dict with __missing__ under the standard deviation, which an annealing schedule changes a little at every iteration, so no key ever comes twice; from image optimisation code with annealed blur and caches keyed by a float
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class BlurMatrices(dict):
    """(size, sigma) -> dense matrix that blurs along one axis."""

    def __init__(self, device):
        super().__init__()
        self.device = device

    def _build(self, size, sigma):
        i = torch.arange(size, device=self.device, dtype=torch.float32)
        m = torch.exp(-0.5 * ((i[:, None] - i[None]) / sigma) ** 2)
        return m / m.sum(1, keepdim=True)

    def __missing__(self, key):
        value = self[key] = self._build(*key)  # LEAK
        return value


class Blur(nn.Module):
    cache = {}

    def __init__(self, device="cuda"):
        super().__init__()
        self.matrices = Blur.cache.setdefault(device, BlurMatrices(device))

    def forward(self, x, sigma):
        if sigma < 0.05:
            return x
        rows = self.matrices[x.shape[-2], sigma]
        cols = self.matrices[x.shape[-1], sigma]
        return rows @ x @ cols.T


class Schedule:
    def __init__(self, start, end, steps):
        self.start, self.end, self.steps = start, end, steps

    def __call__(self, step):
        cos = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.end + (self.start - self.end) * cos


class Texture(nn.Module):
    def __init__(self, size=256):
        super().__init__()
        self.logits = nn.Parameter(0.1 * torch.randn(1, 3, size, size))

    def forward(self):
        return torch.sigmoid(self.logits)


class Views:
    """Random crops of the picture that is to be matched."""

    def __init__(self, picture, crop):
        self.picture, self.crop = picture, crop

    def pair(self, texture):
        n = self.picture.shape[-1] - self.crop + 1
        top, left = torch.randint(0, n, (2,)).tolist()
        box = (..., slice(top, top + self.crop), slice(left, left + self.crop))
        return texture[box], self.picture[box]


def picture(size):
    g = torch.linspace(0, 12, size)
    wave = torch.sin(g)[:, None] * torch.cos(1.7 * g)[None]
    return torch.stack([wave, wave.T, -wave])[None].mul(0.5).add(0.5).to("cuda")


def optimise(steps=120, size=224):
    torch.manual_seed(0)
    texture, blur = Texture(size).to("cuda"), Blur("cuda")
    views = Views(picture(size), crop=192)
    sigma_at = Schedule(9.0, 0.2, steps)
    opt = torch.optim.Adam(texture.parameters(), lr=0.05)
    for step in range(steps):
        sigma = sigma_at(step)
        ours, theirs = views.pair(texture())
        loss = F.l1_loss(blur(ours, sigma), blur(theirs, sigma))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 30 == 0:
            print(f"{step}: sigma {sigma:.3f}, loss {loss.item():.4f}")
    return texture().detach()


if __name__ == "__main__":
    out = optimise()
    print("mean colour", [round(c, 3) for c in out.mean((0, 2, 3)).tolist()])
