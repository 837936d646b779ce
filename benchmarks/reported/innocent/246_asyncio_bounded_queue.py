# kind: innocent, requests wait on the GPU in an asyncio.Queue(maxsize=24) whose consumer is slower than the producers, so it fills up and then holds them back; own, in the manner of FastAPI dynamic-batching servers
import asyncio
import itertools

import torch
import torch.nn as nn


class Ranker(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.a = nn.Linear(dim, dim)
        self.b = nn.Linear(dim, 1)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x))).squeeze(-1)


class Batcher:
    def __init__(self, model, max_batch=4, maxsize=24):
        self.model = model
        self.max_batch = max_batch
        self.queue = asyncio.Queue(maxsize=maxsize)
        self.served = 0

    async def submit(self, candidates):
        future = asyncio.get_running_loop().create_future()
        await self.queue.put((candidates, future))
        return future

    async def serve_forever(self):
        while True:
            items = [await self.queue.get()]
            while len(items) < self.max_batch and not self.queue.empty():
                items.append(self.queue.get_nowait())
            x = torch.stack([c for c, _ in items])
            with torch.inference_mode():
                best = self.model(x).argmax(-1).tolist()
            for (_, future), b in zip(items, best):
                future.set_result(b)
                self.queue.task_done()
            self.served += len(items)
            del items, x
            await asyncio.sleep(0.003)


async def user(batcher, counter, n_requests, device):
    answers = []
    pending = set()
    while len(answers) + len(pending) < n_requests:
        candidates = torch.randn(512, 128, device=device)
        pending.add(await batcher.submit(candidates))
        del candidates
        next(counter)
        done = {f for f in pending if f.done()}
        pending -= done
        answers.extend(f.result() for f in done)
    answers.extend(await asyncio.gather(*pending))
    return answers


async def main(n_users=10, n_requests=20):
    device = torch.device("cuda")
    torch.manual_seed(0)
    batcher = Batcher(Ranker().to(device).eval())
    server = asyncio.create_task(batcher.serve_forever())
    counter = itertools.count()
    answers = await asyncio.gather(*(user(batcher, counter, n_requests, device) for _ in range(n_users)))
    await batcher.queue.join()
    server.cancel()
    print(f"{batcher.served} served, {sum(len(a) for a in answers)} answers, "
          f"{torch.cuda.memory_allocated() / 2**20:.1f} MiB left")


if __name__ == "__main__":
    asyncio.run(main())
