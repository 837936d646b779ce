# kind: one BackgroundTasks object is made with the application and shared by all requests, its list of tasks is run after each response and never emptied; from FastAPI / starlette questions on background tasks that run again and again
import asyncio
import inspect

import torch
import torch.nn as nn


class BackgroundTask:
    def __init__(self, func, *args, **kwargs):
        self.func, self.args, self.kwargs = func, args, kwargs
        self.is_async = inspect.iscoroutinefunction(func)

    async def __call__(self):
        if self.is_async:
            await self.func(*self.args, **self.kwargs)
        else:
            self.func(*self.args, **self.kwargs)


class BackgroundTasks(BackgroundTask):
    def __init__(self):
        self.tasks = []

    def add_task(self, func, *args, **kwargs):
        self.tasks.append(BackgroundTask(func, *args, **kwargs))  # LEAK

    async def __call__(self):
        for task in self.tasks:
            await task()


class Response:
    def __init__(self, body, background=None):
        self.body, self.background = body, background


class AuditLog:
    def __init__(self):
        self.lines = {}

    def note(self, request_id, embedding):
        """Norm and drift of the embedding go to the monitoring."""
        if request_id not in self.lines:
            self.lines[request_id] = embedding.norm(dim=-1).mean().item()


class App:
    def __init__(self):
        self.routes = {}

    def post(self, path):
        def register(fn):
            self.routes[path] = fn
            return fn
        return register

    async def __call__(self, path, payload):
        response = await self.routes[path](payload)
        if response.background is not None:
            await response.background()
        return response.body


def create_app(device="cuda"):
    app = App()
    encoder = nn.Sequential(nn.Embedding(4000, 96), nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 384)).to(device).eval()
    audit = AuditLog()
    background = BackgroundTasks()
    app.audit = audit

    @torch.inference_mode()
    def encode(tokens):
        return encoder(torch.tensor(tokens, device=device))

    @app.post("/embed")
    async def embed(payload):
        hidden = encode(payload["tokens"])
        background.add_task(audit.note, payload["id"], hidden)  # ALSO
        pooled = torch.nn.functional.normalize(hidden.mean(1), dim=-1)
        return Response(pooled[:, :8].tolist(), background)

    return app


async def client(app, n):
    g = torch.Generator().manual_seed(2)
    for i in range(n):
        tokens = torch.randint(0, 4000, (4, 64), generator=g).tolist()
        body = await app("/embed", {"id": f"req-{i}", "tokens": tokens})
        if i % 50 == 0:
            print(f"request {i}: {len(body)} vectors, {len(app.audit.lines)} audited")
        await asyncio.sleep(0)


if __name__ == "__main__":
    asyncio.run(client(create_app(), 160))
