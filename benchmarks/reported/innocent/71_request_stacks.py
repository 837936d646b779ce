# kind: buffers of a request are entered into an ExitStack of its own which closes with the request, requests overlap and bursts are larger at first; from FastAPI dependency / AsyncExitStack code (repaired form)
import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
import random

import torch
import torch.nn as nn


@asynccontextmanager
async def staging(shape):
    buf = torch.zeros(shape, device="cuda")
    try:
        yield buf
    finally:
        del buf


class Upscaler(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x):
        return self.body(x)


class Service:
    def __init__(self):
        self.model = Upscaler().cuda().eval()
        self.gate = asyncio.Semaphore(6)
        self.active, self.peak, self.done = 0, 0, 0

    async def handle(self, image, tile=48):
        async with self.gate, AsyncExitStack() as stack:
            self.active += 1
            self.peak = max(self.peak, self.active)
            h, w = image.shape[-2:]
            canvas = await stack.enter_async_context(staging((3, 2 * h, 2 * w)))
            for y in range(0, h, tile):
                for x in range(0, w, tile):
                    piece = await stack.enter_async_context(staging((1, 3, tile, tile)))
                    piece.copy_(image[None, :, y:y + tile, x:x + tile])
                    with torch.inference_mode():
                        canvas[:, 2 * y:2 * y + 2 * tile, 2 * x:2 * x + 2 * tile] = self.model(piece)[0]
                await asyncio.sleep(0)
            self.active -= 1
            self.done += 1
            return canvas.mean((1, 2)).tolist()


async def burst(service, n, rng):
    sizes = [rng.choice([48, 96, 144]) for _ in range(n)]
    return await asyncio.gather(*(service.handle(torch.rand(3, s, s)) for s in sizes))


async def main():
    rng, service = random.Random(0), Service()
    for k, n in enumerate([2, 4, 6, 8, 8, 8, 6, 4, 3, 3, 2, 2, 2, 1, 1, 1]):
        answers = await burst(service, n, rng)
        if k % 4 == 0:
            print(f"burst {k}: {n} requests, mean {answers[0][0]:.3f}, served {service.done}, peak {service.peak}")


torch.manual_seed(0)
asyncio.run(main())
