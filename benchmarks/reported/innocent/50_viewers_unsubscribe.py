# kind: frames go into bounded queues of subscribers, the oldest frame is thrown away for slow ones and viewers unsubscribe when they leave; from encode/broadcaster issue 108 (repaired form)
import asyncio
import contextlib
import random

import torch
import torch.nn as nn


class Depth(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 4, 3, padding=1))

    def forward(self, x):
        return self.net(x)


class Broadcast:
    def __init__(self, depth=10):
        self._subscribers, self.depth = set(), depth

    def publish(self, event):
        for queue in self._subscribers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)

    @contextlib.asynccontextmanager
    async def subscribe(self):
        queue = asyncio.Queue(self.depth)
        self._subscribers.add(queue)
        try:
            yield queue
        finally:
            self._subscribers.discard(queue)


async def viewer(broadcast, frames, every):
    near = 0.0
    async with broadcast.subscribe() as queue:
        for _ in range(frames):
            frame = await queue.get()
            near = max(near, frame.max().item())
            for _ in range(every):
                await asyncio.sleep(0)
    return near


async def main():
    rng = random.Random(2)
    torch.manual_seed(0)
    model, broadcast = Depth().cuda().eval(), Broadcast()
    people = []
    for i in range(200):
        if i % 12 == 0:
            people.append(asyncio.create_task(viewer(broadcast, rng.randint(4, 14), rng.randint(1, 6))))
        with torch.inference_mode():
            broadcast.publish(model(torch.rand(1, 3, 96, 144, device="cuda")))
        await asyncio.sleep(0)
        if i % 40 == 0:
            print("frame", i, "watching", len(broadcast._subscribers))
    for p in people:
        p.cancel()
    await asyncio.gather(*people, return_exceptions=True)
    print("finished", sum(not p.cancelled() for p in people), "of", len(people))


asyncio.run(main())
