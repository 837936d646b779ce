# kind: predictions are moved to the CPU before they are kept, yet with their graph, whose activations stay on the GPU; from pytorch/pytorch issue 13613 (GPU memory grows though results are collected with .cpu())
import math
from dataclasses import dataclass, field

import torch
from torch import nn


class HeightNet(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.down = nn.Conv2d(3, c, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(c, c, 3, padding=1)
        self.head = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        h = torch.tanh(self.down(x))
        h = torch.tanh(self.mid(h))
        return self.head(h)


@dataclass
class Mosaic:
    tile: int
    parts: dict = field(default_factory=dict)

    def put(self, row, col, heights):
        self.parts[row, col] = heights.cpu()  # LEAK

    def coverage(self, rows, cols):
        return len(self.parts) / (rows * cols)


def tiles(rows, cols, size):
    g = torch.Generator().manual_seed(11)
    for r in range(rows):
        for c in range(cols):
            yield r, c, torch.rand(1, 3, size, size, generator=g)


def survey(rows=16, cols=12, size=192):
    torch.manual_seed(11)
    net = HeightNet().cuda().eval()
    mosaic = Mosaic(size)
    for r, c, image in tiles(rows, cols, size):
        heights = net(image.cuda())
        mosaic.put(r, c, heights[0, 0])
    return math.floor(100 * mosaic.coverage(rows, cols))


survey()
