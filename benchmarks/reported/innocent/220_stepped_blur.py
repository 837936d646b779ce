# kind: blur operators are memoised under their standard deviation, the annealing schedule goes down in steps of a quarter and reaches its end before the middle of the run; from image optimisation code with annealed blur
import torch
import torch.nn as nn
import torch.nn.functional as F


class BlurMatrices(dict):
    def __init__(self, device):
        super().__init__()
        self.device = device

    def __missing__(self, key):
        size, sigma = key
        i = torch.arange(size, device=self.device, dtype=torch.float32)
        m = torch.exp(-0.5 * ((i[:, None] - i[None]) / sigma) ** 2)
        self[key] = m = m / m.sum(1, keepdim=True)
        return m


class Blur(nn.Module):
    def __init__(self, device="cuda"):
        super().__init__()
        self.matrices = BlurMatrices(device)

    def forward(self, x, sigma):
        if sigma == 0:
            return x
        return self.matrices[x.shape[-2], sigma] @ x @ self.matrices[x.shape[-1], sigma].T


def staircase(start, stop, step, every):
    """sigma for each iteration: start, ..., stop, stop, stop, ..."""
    sigma, t = start, 0
    while True:
        yield sigma
        t += 1
        if t % every == 0 and sigma > stop:
            sigma -= step


class Texture(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.logits = nn.Parameter(0.1 * torch.randn(1, 3, size, size))

    def forward(self):
        return torch.sigmoid(self.logits)


class Views:
    def __init__(self, picture, crops):
        self.picture, self.crops = picture, crops

    def pair(self, texture, i):
        crop = self.crops[i % len(self.crops)]
        n = self.picture.shape[-1] - crop + 1
        top, left = torch.randint(0, n, (2,)).tolist()
        box = (..., slice(top, top + crop), slice(left, left + crop))
        return texture[box], self.picture[box]


def picture(size):
    g = torch.linspace(0, 12, size)
    wave = torch.sin(g)[:, None] * torch.cos(1.7 * g)[None]
    return torch.stack([wave, wave.T, -wave])[None].mul(0.5).add(0.5).to("cuda")


def optimise(steps=200, size=256):
    torch.manual_seed(0)
    texture, blur = Texture(size).to("cuda"), Blur()
    views = Views(picture(size), crops=(192, 224))
    opt = torch.optim.Adam(texture.parameters(), lr=0.05)
    for step, sigma in zip(range(steps), staircase(6.0, 0.5, 0.25, every=4)):
        ours, theirs = views.pair(texture(), step)
        loss = F.l1_loss(blur(ours, sigma), blur(theirs, sigma))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0:
            print(f"{step}: sigma {sigma:.2f}, {len(blur.matrices)} operators, loss {loss.item():.4f}")
    return texture().detach()


if __name__ == "__main__":
    print("mean colour", [round(c, 3) for c in optimise().mean((0, 2, 3)).tolist()])
