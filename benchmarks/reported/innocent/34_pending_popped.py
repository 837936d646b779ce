# kind: micro-batching in asyncio whose table of pending requests is emptied in finally, clients that hang up included; from request batching server code
import asyncio
import collections
import torch
import torch.nn as nn

Pending = collections.namedtuple("Pending", "tensor future")


class Upscaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 3, padding=1)
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, x):
        return self.shuffle(self.conv(x))


class Server:
    def __init__(self, batch=4):
        self.net = Upscaler().cuda().eval()
        self.batch = batch
        self.pending = {}
        self.n = 0
        self.history = collections.deque(maxlen=16)

    async def submit(self, image):
        rid, self.n = self.n, self.n + 1
        fut = asyncio.get_running_loop().create_future()
        self.pending[rid] = Pending(image.cuda(), fut)
        try:
            return (await fut).cpu()
        finally:
            self.pending.pop(rid, None)

    async def work(self):
        while True:
            await asyncio.sleep(0)
            todo = [p for p in list(self.pending.values()) if not p.future.done()][:self.batch]
            if not todo:
                continue
            with torch.no_grad():
                out = self.net(torch.stack([p.tensor for p in todo]))
            self.history.append(out)
            for p, o in zip(todo, out):
                if not p.future.cancelled():
                    p.future.set_result(o.clone())


async def user(server, hang_up):
    task = asyncio.ensure_future(server.submit(torch.rand(3, 96, 96)))
    if hang_up:
        await asyncio.sleep(0)
        task.cancel()
    try:
        return (await task).shape
    except asyncio.CancelledError:
        return None


async def main():
    server = Server()
    worker = asyncio.create_task(server.work())
    ok = gone = 0
    for wave in range(120):
        res = await asyncio.gather(*(user(server, hang_up=k == 3) for k in range(5)))
        ok += sum(r is not None for r in res)
        gone += sum(r is None for r in res)
        if wave % 30 == 0:
            print(f"wave {wave}: {ok} ok, {gone} gone, pending {len(server.pending)}")
    worker.cancel()


asyncio.run(main())
