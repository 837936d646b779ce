# kind: functools.cache on the rendering of a view fills up during a round of optimisation and cache_clear() empties it before the next round with a finer shape; after getsentry/seer PR 2512
import functools
import math

import torch
from torch import nn

torch.manual_seed(18)
dev = "cuda"


@functools.cache
def pixel_rays(size, angle):
    """Directions of all pixels of a camera on a circle around the object."""
    c, s = math.cos(angle), math.sin(angle)
    axis = torch.linspace(-0.6, 0.6, size, device=dev)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    dirs = torch.stack([x, y, -torch.ones_like(x)], -1)
    rot = torch.tensor([[c, 0, s], [0, 1, 0], [-s, 0, c]], device=dev)
    dirs = nn.functional.normalize(dirs @ rot.T, dim=-1)
    origin = 2.0 * rot[:, 2]
    return torch.cat([origin.expand_as(dirs), dirs], -1)


@functools.cache
def target_view(size, angle):
    rays = pixel_rays(size, angle)
    o, d = rays.split(3, -1)
    b = (o * d).sum(-1)
    closest = (o * o).sum(-1) - b * b
    return torch.sigmoid(30 * (0.5 + 0.1 * math.sin(3 * angle) - closest))


class Silhouette(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, rays):
        return self.net(rays).squeeze(-1)


def main():
    model = Silhouette().to(dev)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(5)
    for round_no in range(10):
        size = min(96 + 32 * round_no, 192)
        views = [round(2 * math.pi * float(v), 4) for v in torch.rand(30, generator=gen)]
        for it in range(40):
            angle = views[it if it < 30 else int(torch.randint(0, 30, (1,), generator=gen))]
            rays = pixel_rays(size, angle).view(-1, 6)
            target = target_view(size, angle).view(-1)
            pick = torch.randint(0, len(rays), (2048,), device=dev)
            loss = nn.functional.binary_cross_entropy_with_logits(model(rays[pick]), target[pick])
            opt.zero_grad()
            loss.backward()
            opt.step()
        info = pixel_rays.cache_info()
        print(f"round {round_no}: {size} px, loss {loss.item():.4f}, {info.currsize} views held")
        pixel_rays.cache_clear()
        target_view.cache_clear()


if __name__ == "__main__":
    main()
