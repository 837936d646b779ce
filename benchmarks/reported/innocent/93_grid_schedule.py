# kind: planes of a radiance field are upsampled at fixed iterations of the first half of training, each time with a new optimizer; from apchenstu/TensoRF issue 32 (memory required for training, upsamp_list) and sjtuytc/UnboundedNeRFPytorch issue 124 (memory creeps up by the scale schedule)
import math
from dataclasses import dataclass, field
from typing import List

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    start: int = 48
    final: int = 320
    upsample_at: List[int] = field(default_factory=lambda: [25, 45, 70, 95])
    iterations: int = 200
    rays: int = 256
    samples: int = 16


def lookup(plane, u, v):
    """Bilinear values of a plane (C, R, R) at points in [-1, 1]."""
    r = plane.shape[-1]
    flat = plane.flatten(1)
    u, v = (u + 1) / 2 * (r - 1), (v + 1) / 2 * (r - 1)
    u0, v0 = u.floor().clamp(0, r - 2), v.floor().clamp(0, r - 2)
    fu, fv = u - u0, v - v0
    at = (v0 * r + u0).long()
    corners = [flat.index_select(1, at + o) for o in (0, 1, r, r + 1)]
    top = corners[0] * (1 - fu) + corners[1] * fu
    bottom = corners[2] * (1 - fu) + corners[3] * fu
    return (top * (1 - fv) + bottom * fv).t()


class Planes(nn.Module):
    def __init__(self, resolution, rank=12):
        super().__init__()
        self.planes = nn.ParameterList(nn.Parameter(0.1 * torch.randn(1, rank, resolution, resolution)) for _ in range(3))
        self.rgb = nn.Sequential(nn.Linear(3 * rank, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, p):
        axes = [(0, 1), (1, 2), (0, 2)]
        feats = []
        for plane, (a, b) in zip(self.planes, axes):
            feats.append(lookup(plane[0], p[..., a], p[..., b]))
        return self.rgb(torch.cat(feats, -1))

    @torch.no_grad()
    def upsample(self, resolution):
        for i, plane in enumerate(self.planes):
            bigger = F.interpolate(plane.data, size=(resolution, resolution), mode="bilinear", align_corners=True)
            self.planes[i] = nn.Parameter(bigger)


def schedule(cfg):
    logs = torch.linspace(math.log(cfg.start), math.log(cfg.final), len(cfg.upsample_at) + 1)[1:]
    return dict(zip(cfg.upsample_at, [int(round(math.exp(v))) for v in logs.tolist()]))


def render(field_, cfg, generator):
    origin = torch.rand(cfg.rays, 1, 3, generator=generator) * 2 - 1
    direction = F.normalize(torch.randn(cfg.rays, 1, 3, generator=generator), dim=-1)
    t = torch.linspace(0, 1, cfg.samples).view(1, -1, 1)
    points = (origin + t * direction).clamp(-1, 1).cuda()
    out = field_(points.reshape(-1, 3)).view(cfg.rays, cfg.samples, 4)
    alpha = 1 - torch.exp(-F.softplus(out[..., 3:]) / cfg.samples)
    through = torch.cumprod(1 - alpha + 1e-6, dim=1)
    return (alpha * through * out[..., :3].sigmoid()).sum(1)


def reconstruct(cfg):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    model = Planes(cfg.start).cuda()
    make = lambda: torch.optim.Adam(model.parameters(), lr=0.02, betas=(0.9, 0.99))
    opt, plan = make(), schedule(cfg)
    for it in range(cfg.iterations):
        colour = render(model, cfg, g)
        loss = (colour - 0.5).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it in plan:
            del opt
            model.upsample(plan[it])
            opt = make()


reconstruct(Config())
