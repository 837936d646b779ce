# kind: broadcaster in asyncio puts each frame into the queue of every subscriber and viewers who leave are never unsubscribed; from encode/broadcaster issue 108
import asyncio
import random

import torch
import torch.nn as nn


class Upscaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 12, 3, padding=1))

    def forward(self, x):
        return nn.functional.pixel_shuffle(self.body(x), 2)


class Broadcast:
    def __init__(self):
        self._subscribers = set()

    async def publish(self, event):
        for queue in list(self._subscribers):
            await queue.put(event)  # LEAK

    def subscribe(self):
        queue = asyncio.Queue()
        self._subscribers.add(queue)  # ALSO
        return queue


class Viewer:
    def __init__(self, name, patience):
        self.name, self.patience = name, patience
        self.brightness = 0.0

    async def watch(self, broadcast):
        queue = broadcast.subscribe()
        for _ in range(self.patience):
            frame = await queue.get()
            self.brightness = 0.9 * self.brightness + 0.1 * frame.mean().item()
        return self.name


async def camera(broadcast, model, frames):
    for i in range(frames):
        with torch.inference_mode():
            frame = model(torch.rand(1, 3, 96, 128, device="cuda"))
        await broadcast.publish(frame)
        await asyncio.sleep(0)
        if i % 30 == 0:
            print("frame", i, "sent")


async def main():
    rng = random.Random(1)
    model = Upscaler().cuda().eval()
    broadcast = Broadcast()
    viewers = [asyncio.create_task(Viewer(f"v{i}", rng.randint(3, 150)).watch(broadcast)) for i in range(6)]
    await asyncio.sleep(0)
    await camera(broadcast, model, 150)
    done = [v.result() for v in viewers if v.done()]
    print("left before the end:", done)


asyncio.run(main())
