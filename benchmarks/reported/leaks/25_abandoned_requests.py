# kind: batch server in asyncio, answers of clients who have given up stay in the results dict; from Triton / request batching issues on timed-out requests
import asyncio
import itertools
import torch
from torch import nn


class StyleNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.InstanceNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 3, 3, padding=1),
        )

    def forward(self, x):
        return torch.sigmoid(self.body(x))


class ModelRunner:
    def __init__(self, max_batch=4):
        self.model = StyleNet().to("cuda").eval()
        self.max_batch = max_batch
        self.queue = []
        self.ready = {}
        self.results = {}
        self.wakeup = asyncio.Event()
        self.ids = itertools.count()
        self.served = 0

    async def process(self, image, patience=None):
        rid = next(self.ids)
        self.ready[rid] = asyncio.Event()
        self.queue.append((rid, image))
        self.wakeup.set()
        if patience is not None:
            # the client waits so many turns of the loop, then hangs up
            for _ in range(patience):
                await asyncio.sleep(0)
            del self.ready[rid]
            raise TimeoutError(rid)
        await self.ready[rid].wait()
        del self.ready[rid]
        return self.results.pop(rid)

    @torch.no_grad()
    def infer(self, images):
        batch = torch.stack(images).to("cuda")
        return [o.clone() for o in self.model(batch)]

    async def loop(self):
        while True:
            while not self.queue:
                self.wakeup.clear()
                await self.wakeup.wait()
            await asyncio.sleep(0.001)
            work, self.queue = self.queue[:self.max_batch], self.queue[self.max_batch:]
            for (rid, _), out in zip(work, self.infer([im for _, im in work])):
                self.results[rid] = out  # LEAK
                self.served += 1
                if rid in self.ready:
                    self.ready[rid].set()


async def client(runner, n, impatient):
    try:
        image = torch.rand(3, 224, 224)
        out = await runner.process(image, patience=1 if impatient else None)
        return float(out.mean())
    except TimeoutError:
        return None


async def main():
    runner = ModelRunner()
    task = asyncio.create_task(runner.loop())
    answered = lost = 0
    for burst in range(80):
        outs = await asyncio.gather(*[client(runner, burst, impatient=(i == 2)) for i in range(4)])
        answered += sum(o is not None for o in outs)
        lost += sum(o is None for o in outs)
        if burst % 20 == 0:
            print(f"burst {burst}: answered {answered}, hung up {lost}")
    task.cancel()


asyncio.run(main())
