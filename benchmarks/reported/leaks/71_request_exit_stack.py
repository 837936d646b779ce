# kind: each request's mask is handed to the ExitStack of the application's lifespan, whose callbacks run at shutdown only; from FastAPI questions on AsyncExitStack / lifespan and GPU memory that rises per request
import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import torch
import torch.nn as nn


class SegNet(nn.Module):
    def __init__(self, c=12, classes=6):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, c, 3, 2, 1), nn.ReLU(), nn.Conv2d(c, 2 * c, 3, 2, 1), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(2 * c, c, 2, 2), nn.ReLU(), nn.ConvTranspose2d(c, classes, 2, 2))

    def forward(self, x):
        return self.up(self.down(x))


class SharedBuffer:
    """Output of one request in the layout which the renderer wants."""

    def __init__(self, probs):
        self.probs = probs
        self.open = True

    def palette(self):
        return self.probs.argmax(1).flatten().bincount(minlength=self.probs.shape[1]).tolist()

    async def close(self):
        self.open = False
        self.probs = None


class App:
    def __init__(self, lifespan):
        self.lifespan = lifespan
        self.state = {}
        self.routes = {}

    def post(self, path):
        def register(handler):
            self.routes[path] = handler
            return handler
        return register

    async def request(self, path, body):
        return await self.routes[path](self.state, body)


@asynccontextmanager
async def lifespan(app):
    async with AsyncExitStack() as stack:
        model = SegNet().cuda().eval()
        stack.callback(lambda: print("model unloaded"))
        app.state.update(model=model, stack=stack, limit=asyncio.Semaphore(2), served=0)
        yield


app = App(lifespan)


@app.post("/segment")
async def segment(state, body):
    async with state["limit"]:
        with torch.inference_mode():
            probs = state["model"](body["image"].cuda()).softmax(1)
        buf = SharedBuffer(probs)
        state["stack"].push_async_callback(buf.close)  # LEAK
        await asyncio.sleep(0)
        state["served"] += 1
        return {"id": body["id"], "histogram": buf.palette()}


async def client(n, side=128):
    for i in range(n):
        answers = await asyncio.gather(*(app.request("/segment", {"id": (i, k), "image": torch.rand(1, 3, side, side)}) for k in range(2)))
        if i % 20 == 0:
            print(app.state["served"], "served", answers[0]["histogram"])


async def serve():
    async with app.lifespan(app):
        await client(60)


asyncio.run(serve())
