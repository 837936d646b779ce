# kind: a subscriber's mailbox puts the newest state of a key into a dict and the key into a bounded queue, when the queue is full the key is turned away after the state has been entered, nobody will ever receive it; after gpustack/gpustack PR 5255 (Subscriber.latest_by_key strands entries on QueueFull)
"""Live wall of a traffic camera: appearance maps of the vehicles go to viewers.

https://github.com/gpustack/gpustack/pull/5255
"""
import asyncio
import enum
import logging
import random
from dataclasses import dataclass

import torch
import torch.nn as nn

logger = logging.getLogger("wall")


class Kind(enum.Enum):
    CREATED = "created"
    UPDATED = "updated"


@dataclass
class Event:
    kind: Kind
    id: int
    data: torch.Tensor


class Subscriber:
    """Updates of the same vehicle are coalesced while it waits in the queue."""

    def __init__(self, maxsize=24):
        self.queue = asyncio.Queue(maxsize=maxsize)
        self.latest_by_key = {}
        self.dropped = 0

    def enqueue(self, event):
        if event.kind is Kind.UPDATED and event.id in self.latest_by_key:
            self.latest_by_key[event.id] = event
            return
        self.latest_by_key[event.id] = event  # LEAK
        try:
            self.queue.put_nowait(event.id)
        except asyncio.QueueFull:
            self.dropped += 1
            logger.debug("queue full, skipping %s of %s", event.kind, event.id)

    async def receive(self):
        key = await self.queue.get()
        return self.latest_by_key.pop(key)


class Bus:
    def __init__(self):
        self.subscribers = []

    def publish(self, event):
        for subscriber in self.subscribers:
            subscriber.enqueue(event)  # ALSO


class Backbone(nn.Module):
    def __init__(self, width=80):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1), nn.SiLU(), nn.Conv2d(width, width, 3, stride=2, padding=1), nn.SiLU())

    def forward(self, crops):
        return self.net(crops)


class Camera:
    """Vehicles drive through the picture, each is seen in some frames."""

    def __init__(self, seed=3):
        self.rng, self.next_id, self.present = random.Random(seed), 0, {}

    def frame(self):
        self.present = {k: left - 1 for k, left in self.present.items() if left > 1}
        entered = []
        for _ in range(self.rng.choice((1, 2, 2, 3))):
            self.present[self.next_id] = self.rng.randint(2, 6)
            entered.append(self.next_id)
            self.next_id += 1
        ids = sorted(self.present)
        return ids, set(entered), torch.rand(len(ids), 3, 64, 64)


async def produce(bus, backbone, frames, drawn):
    camera = Camera()
    for t in range(frames):
        ids, entered, crops = camera.frame()
        with torch.inference_mode():
            maps = backbone(crops.to("cuda"))
        for i, key in enumerate(ids):
            kind = Kind.CREATED if key in entered else Kind.UPDATED
            bus.publish(Event(kind, key, maps[i].clone()))  # ALSO
        async with drawn:
            drawn.notify_all()
        await asyncio.sleep(0.008)
        if t % 80 == 0:
            subscriber = bus.subscribers[0]
            print(f"frame {t}: {len(ids)} vehicles, {subscriber.queue.qsize()} waiting, {subscriber.dropped} dropped")


async def watch(subscriber, drawn):
    """Draws one vehicle per frame."""
    shown = 0.0
    while True:
        event = await subscriber.receive()
        shown = 0.9 * shown + 0.1 * event.data.mean().item()
        async with drawn:
            await drawn.wait()


async def main(frames=400):
    torch.manual_seed(0)
    bus, drawn = Bus(), asyncio.Condition()
    bus.subscribers.append(Subscriber())
    viewer = asyncio.create_task(watch(bus.subscribers[0], drawn))
    await produce(bus, Backbone().to("cuda").eval(), frames, drawn)
    viewer.cancel()


if __name__ == "__main__":
    asyncio.run(main())
