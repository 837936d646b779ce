# kind: scratch arena hands out slices of large chunks and is reset after every tile, reset() begins again in the newest chunk and not in the first one, so that what does not fit into it is asked for anew each time; after rapidsai/rmm issue 35 (allocation beyond the initial pool does not reuse freed memory)
import math
from contextlib import contextmanager

import torch
import torch.nn.functional as F


class Arena:
    """Bump allocator for float32 scratch."""

    def __init__(self, chunk_elements=160_000, device="cuda"):
        self.chunk_elements, self.device = chunk_elements, device
        self.chunks = []
        self.offset = 0
        self._grow()

    def _grow(self):
        self.chunks.append(torch.empty(self.chunk_elements, device=self.device))  # LEAK
        self.offset = 0

    def take(self, *shape):
        n = math.prod(shape)
        if n > self.chunk_elements:
            raise ValueError(f"{shape} is larger than a chunk")
        if self.offset + n > self.chunk_elements:
            self._grow()
        piece = self.chunks[-1][self.offset:self.offset + n]
        self.offset += n
        return piece.view(*shape)

    def reset(self):
        self.offset = 0

    @contextmanager
    def frame(self):
        try:
            yield self
        finally:
            self.reset()


def gaussian(size, sigma):
    x = torch.arange(size, device="cuda") - (size - 1) / 2
    k = torch.exp(-x.square() / (2 * sigma * sigma))
    return k / k.sum()


class RidgeFilter:
    """Largest eigenvalue of the Hessian over some scales, without a new tensor per step."""

    def __init__(self, arena, sigmas=(1.0, 2.0, 3.0)):
        self.arena = arena
        self.kernels = [gaussian(13, s) for s in sigmas]

    def _smooth(self, image, k, out):
        y = F.conv2d(image[None, None], k.view(1, 1, 1, -1), padding=(0, 6))
        out.copy_(F.conv2d(y, k.view(1, 1, -1, 1), padding=(6, 0))[0, 0])
        return out

    def __call__(self, image):
        h, w = image.shape
        best = torch.zeros(h, w, device=image.device)
        for k in self.kernels:
            smooth = self._smooth(image, k, self.arena.take(h, w))
            hxx, hyy, hxy = (self.arena.take(h, w).zero_() for _ in range(3))
            torch.sub(smooth[:, 2:] + smooth[:, :-2], 2 * smooth[:, 1:-1], out=hxx[:, 1:-1])
            torch.sub(smooth[2:] + smooth[:-2], 2 * smooth[1:-1], out=hyy[1:-1])
            hxy[1:-1, 1:-1] = (smooth[2:, 2:] - smooth[2:, :-2] - smooth[:-2, 2:] + smooth[:-2, :-2]) / 4
            root = ((hxx - hyy).square() / 4 + hxy.square()).sqrt_()
            torch.maximum(best, -((hxx + hyy) / 2 - root), out=best)
        return best


class Mosaic:
    def __init__(self, tiles, side=144, seed=2):
        self.tiles, self.side = tiles, side
        self.g = torch.Generator().manual_seed(seed)

    def __iter__(self):
        t = torch.linspace(0, 12, self.side)
        for _ in range(self.tiles):
            a, b = torch.rand(2, generator=self.g).tolist()
            vessel = torch.sin(a * t[:, None] + b * t[None, :] * 2).gt(0.97).float()
            yield vessel + 0.05 * torch.randn(self.side, self.side, generator=self.g)


@torch.no_grad()
def main():
    arena = Arena()
    ridge = RidgeFilter(arena)
    lengths = []
    for i, tile in enumerate(Mosaic(60)):
        with arena.frame():
            response = ridge(tile.cuda())
            lengths.append((response > 0.05).sum().item())
        if i % 15 == 0:
            print(f"tile {i}: {sum(lengths) / len(lengths):.0f} vessel pixels per tile")


if __name__ == "__main__":
    main()
