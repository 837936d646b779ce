# kind: each new frame's residual map becomes a parameter group of the one optimizer and old groups stay; from open-mmlab/mmdetection issue 1308 (momentum buffers getting more and more) and online mapping code such as muskie82/MonoGS
import math
import torch
import torch.nn as nn


class Field(nn.Module):
    """small coordinate network that is trained while frames come in"""

    def __init__(self, bands=6, width=64):
        super().__init__()
        self.register_buffer("freq", 2.0 ** torch.arange(bands) * math.pi)
        self.mlp = nn.Sequential(nn.Linear(3 * 2 * bands, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, p):
        e = (p[..., None] * self.freq).flatten(-2)
        return torch.sigmoid(self.mlp(torch.cat([e.sin(), e.cos()], -1)))


def grid(h, w, t):
    y, x = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
    return torch.stack([x, y, torch.full_like(x, t)], -1).cuda()


class OnlineMapper:
    def __init__(self, size=(104, 136)):
        self.size = size
        self.field = Field().cuda()
        self.opt = torch.optim.Adam([{"params": self.field.parameters(), "lr": 2e-3, "name": "field"}])

    def integrate(self, idx, frame, iters=2):
        exposure = nn.Parameter(torch.zeros(*self.size, 3, device="cuda"))
        self.opt.add_param_group({"params": [exposure], "lr": 1e-2, "name": f"exposure_{idx}"})  # LEAK
        p = grid(*self.size, idx / 100 % 2 - 1)
        for _ in range(iters):
            sel = torch.randint(self.size[0], (24,), device="cuda")
            pred = self.field(p[sel]) + exposure[sel]
            loss = (pred - frame[sel]).abs().mean() + 1e-3 * exposure.square().mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return loss.item()


def camera(n, size):
    g = torch.Generator().manual_seed(5)
    base = torch.rand(*size, 3, generator=g)
    for i in range(n):
        yield (base.roll(i, 1) * (0.8 + 0.2 * math.sin(i / 7))).cuda()


def main(frames=90):
    torch.manual_seed(0)
    mapper = OnlineMapper()
    for i, frame in enumerate(camera(frames, mapper.size)):
        err = mapper.integrate(i, frame)
        if i % 15 == 0:
            print(f"frame {i:3d}  photometric {err:.4f}")


main()
