# kind: truncated signed distances are fused into blocks of 16^3 voxels that are allocated when a surface first comes near them, the camera goes round the same room again and again; from isl-org/Open3D questions on VoxelBlockGrid memory and nachovizzo/vdbfusion
import math
from dataclasses import dataclass

import torch

B = 16


@dataclass
class Block:
    tsdf: torch.Tensor
    weight: torch.Tensor
    colour: torch.Tensor

    @classmethod
    def empty(cls):
        return cls(torch.ones(B, B, B, device="cuda"), torch.zeros(B, B, B, device="cuda"),
                   torch.zeros(B, B, B, 3, device="cuda"))


class Room:
    """Box of 4 x 4 x 2.5 metres, looked at from inside."""

    size = torch.tensor([4.0, 4.0, 2.5])

    def scan(self, origin, azimuth, rays=24, fov=1.2):
        a = azimuth + fov * (torch.rand(rays * rays) - 0.5)
        e = 0.9 * (torch.rand(rays * rays) - 0.5)
        d = torch.stack([a.cos() * e.cos(), a.sin() * e.cos(), e.sin()], 1)
        with_wall = torch.where(d > 0, self.size - origin, -origin) / torch.where(d.abs() < 1e-6, 1e-6, d)
        depth = with_wall.min(1).values
        hit = origin + depth[:, None] * d
        return hit + 0.005 * torch.randn_like(hit), (hit / self.size).clamp(0, 1)


class VoxelBlockGrid:
    def __init__(self, voxel=0.02, truncation=0.06):
        self.voxel, self.truncation = voxel, truncation
        self.blocks = {}
        axis = torch.arange(B, device="cuda") + 0.5
        self.local = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"), -1)

    def _touched(self, points):
        keys = (points / (self.voxel * B)).floor().int()
        for key in keys.unique(dim=0).tolist():
            yield tuple(key), points[(keys == torch.tensor(key, dtype=torch.int32)).all(1)]

    def integrate(self, points, colours, origin):
        colour = colours.mean(0).cuda()
        new = 0
        for key, near in self._touched(points):
            block = self.blocks.get(key)
            if block is None:
                block = self.blocks[key] = Block.empty()
                new += 1
            self._update(block, key, near.mean(0).cuda(), origin.cuda(), colour)
        return new

    def _update(self, block, key, surface, origin, colour):
        centres = (self.local + B * torch.tensor(key, device="cuda")) * self.voxel
        normal = torch.nn.functional.normalize(origin - surface, dim=0)
        d = (((centres - surface) @ normal) / self.truncation).clamp(-1, 1)
        w = (d > -1).float()
        total = (block.weight + w).clamp(min=1)
        block.tsdf.copy_((block.tsdf * block.weight + d * w) / total)
        block.colour.copy_((block.colour * block.weight[..., None] + colour * w[..., None]) / total[..., None])
        block.weight.add_(w).clamp_(max=60)


def trajectory(turns, per_turn):
    for i in range(turns * per_turn):
        a = 2 * math.pi * i / per_turn
        yield torch.tensor([2 + 0.6 * math.cos(a), 2 + 0.6 * math.sin(a), 1.3 + 0.2 * math.sin(3 * a)]), a


def main():
    torch.manual_seed(0)
    room, grid = Room(), VoxelBlockGrid()
    for i, (origin, azimuth) in enumerate(trajectory(turns=5, per_turn=22)):
        points, colours = room.scan(origin, azimuth)
        new = grid.integrate(points, colours, origin)
        if i % 11 == 0:
            print(f"frame {i}: {len(grid.blocks)} blocks, {new} of them new")


if __name__ == "__main__":
    main()
