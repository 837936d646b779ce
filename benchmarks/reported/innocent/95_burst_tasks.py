# kind: background tasks of an asyncio service are kept in a set and discard themselves when done, bursts of requests are largest in the beginning and wait for a semaphore with their images on the GPU; from letta-ai/letta PR 2823 (task references with discard callback) and the asyncio documentation's recipe
import asyncio
import functools

import torch
from torch import nn


class Upscaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x):
        return self.net(x)


def background(method):
    @functools.wraps(method)
    def start(self, *args):
        task = asyncio.get_running_loop().create_task(method(self, *args))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    return start


class Service:
    def __init__(self):
        self.net = Upscaler().cuda().eval()
        self.tasks = set()
        self.slots = asyncio.Semaphore(2)
        self.brightness = {}

    @background
    async def upscale(self, number, image):
        async with self.slots:
            await asyncio.sleep(0.001)
            with torch.no_grad():
                big = self.net(image)
            self.brightness[number] = float(big.mean())
            return big

    async def drain(self):
        while self.tasks:
            await asyncio.wait(list(self.tasks))


async def main():
    torch.manual_seed(0)
    service = Service()
    number = 0
    for burst in [12, 24, 36, 30, 24, 16, 12, 10, 10, 8, 8, 8, 8, 8, 8]:
        for _ in range(burst):
            service.upscale(number, torch.rand(1, 3, 128, 128, device="cuda"))
            number += 1
            await asyncio.sleep(0)
        await service.drain()


asyncio.run(main())
