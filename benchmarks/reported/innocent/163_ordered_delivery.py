# kind: clips are encoded by concurrent tasks and delivered in their original order, results that are done wait in a dict behind two very long clips and are handed out in one go when these arrive; after ordered loaders with a straggler (ray-project/ray PR 63792)
import asyncio

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"
CLIPS, WORKERS = 220, 5
LONG_CLIPS = {10: 95, 92: 55}


class ClipEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv3d(3, 16, (1, 5, 5), stride=(1, 2, 2), padding=(0, 2, 2))
        self.temporal = nn.Conv3d(16, 48, (3, 3, 3), stride=(1, 2, 2), padding=1)
        self.forecast = nn.Conv2d(48, 48, 1)

    def forward(self, clip):
        return F.relu(self.temporal(F.relu(self.stem(clip))))


class Adapter:
    def __init__(self):
        torch.manual_seed(2)
        self.encoder = ClipEncoder().to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.encoder.parameters(), lr=5e-4)
        self.loss = 0.0

    def encode(self, clip):
        features = self.encoder(clip)
        predicted = self.encoder.forecast(features[0, :, :-1].transpose(0, 1))
        loss = F.smooth_l1_loss(predicted, features[0, :, 1:].transpose(0, 1).detach()) + 0.1 * F.relu(0.3 - features.std())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.loss = loss.item()
        return features.detach()


class Timeline(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(48, 64)
        self.event = nn.Linear(64, 12)
        self.state = None

    @torch.no_grad()
    def forward(self, features):
        for frame in features.mean(dim=(3, 4))[0].t():
            self.state = self.cell(frame[None], self.state)
        return self.event(self.state).argmax().item()


def ticks_needed(index):
    return LONG_CLIPS.get(index, 3 + (index * 7) % 5)


def decode(index):
    gen = torch.Generator().manual_seed(index)
    return torch.randn(1, 3, 12, 64, 64, generator=gen).to(DEVICE)


class InOrder:
    def __init__(self):
        self.done = {}
        self.next_index = 0
        self.changed = asyncio.Condition()

    async def put(self, index, value):
        async with self.changed:
            self.done[index] = value
            self.changed.notify_all()

    async def get(self):
        async with self.changed:
            await self.changed.wait_for(lambda: self.next_index in self.done)
            value = self.done.pop(self.next_index)
            self.next_index += 1
            return value


async def worker(adapter, jobs, results):
    while (index := await jobs.get()) is not None:
        for _ in range(ticks_needed(index)):
            await asyncio.sleep(0)
        await results.put(index, adapter.encode(decode(index)))
        if index % 20 == 0:
            print(f"encoded {index}: loss {adapter.loss:.4f}, {len(results.done)} waiting for {results.next_index}")


async def annotate(results, events):
    timeline = Timeline().to(DEVICE)
    for _ in range(CLIPS):
        events.append(timeline(await results.get()))


async def main():
    adapter, events = Adapter(), []
    jobs, results = asyncio.Queue(maxsize=2 * WORKERS), InOrder()
    tasks = [asyncio.create_task(worker(adapter, jobs, results)) for _ in range(WORKERS)]
    tasks.append(asyncio.create_task(annotate(results, events)))
    for index in list(range(CLIPS)) + [None] * WORKERS:
        await jobs.put(index)
    await asyncio.gather(*tasks)
    print("events", len(events), "kinds", len(set(events)))


if __name__ == "__main__":
    asyncio.run(main())
