# kind: every call over a long-lived connection starts a task that waits for the connection's close event in order to abort the request, and nobody cancels it after the answer; after permitio/fastapi_websocket_rpc issue 15
import asyncio
from dataclasses import dataclass, field

import torch
from torch import nn

torch.manual_seed(7)


@dataclass
class Request:
    rid: int
    pixels: torch.Tensor
    cancelled: bool = False
    answer: asyncio.Future = field(default=None)


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
                                 nn.Flatten(), nn.Linear(32, 4))

    @torch.inference_mode()
    def forward(self, x):
        return self.net(x).softmax(-1)


class Channel:
    """One persistent client connection; many calls go through it."""

    def __init__(self, model):
        self.model = model
        self.closed = asyncio.Event()
        self.queue = asyncio.Queue(maxsize=8)
        self.worker = asyncio.create_task(self._work())
        self.served = 0

    async def _abort_when_closed(self, request):
        await self.closed.wait()  # ALSO
        request.cancelled = True
        if not request.answer.done():
            request.answer.cancel()

    async def call(self, rid, image):
        request = Request(rid, image.cuda(), answer=asyncio.get_running_loop().create_future())
        asyncio.create_task(self._abort_when_closed(request))  # LEAK
        await self.queue.put(request)
        return await request.answer

    async def _work(self):
        while True:
            request = await self.queue.get()
            if request.cancelled:
                continue
            scores = self.model(request.pixels)
            request.answer.set_result(scores.argmax(-1).tolist())
            self.served += 1
            await asyncio.sleep(0)

    def on_disconnect(self):
        self.closed.set()
        self.worker.cancel()


async def client(channel, name, n):
    gen = torch.Generator().manual_seed(name)
    votes = [0, 0, 0, 0]
    for i in range(n):
        image = torch.rand(2, 3, 224, 224, generator=gen)
        for label in await channel.call(name * 1000 + i, image):
            votes[label] += 1
        await asyncio.sleep(0.001)
    return votes


async def main():
    channel = Channel(Scorer().cuda().eval())
    for shift in range(4):
        results = await asyncio.gather(*(client(channel, shift * 3 + k, 25) for k in range(3)))
        print(f"shift {shift}: {channel.served} served, votes {results[0]}")


asyncio.run(main())
