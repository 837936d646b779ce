# kind: the timer handles of all deadlines are collected so that shutdown can cancel them, a handle that has fired still has its arguments, here the job with its latents; after lexiforest/curl_cffi issue 164
import asyncio
import random

import torch
import torch.nn as nn

DEVICE = "cuda"
CLIENTS = 6
JOBS_PER_CLIENT = 20


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(4, 32, 3, padding=1), nn.SiLU(),
            nn.Upsample(scale_factor=2), nn.Conv2d(32, 16, 3, padding=1), nn.SiLU(),
            nn.Conv2d(16, 3, 3, padding=1))

    def forward(self, z):
        return self.net(z).tanh()


class Job:
    def __init__(self, latents, future):
        self.latents = latents
        self.future = future


class DecodeServer:
    """Decodes latents in small batches; a job that is not ready within its
    deadline is answered with a timeout."""

    def __init__(self, deadline=0.05, max_batch=4):
        self.model = Decoder().to(DEVICE).eval()
        self.queue = asyncio.Queue(maxsize=32)
        self.deadline = deadline
        self.max_batch = max_batch
        self.timers = []
        self.expired = 0

    async def submit(self, latents):
        loop = asyncio.get_running_loop()
        job = Job(latents.to(DEVICE), loop.create_future())
        self.timers.append(loop.call_later(self.deadline, self.expire, job))  # LEAK
        await self.queue.put(job)
        return await job.future

    def expire(self, job):
        if not job.future.done():
            self.expired += 1
            job.future.set_exception(TimeoutError("deadline exceeded"))

    async def run(self):
        while True:
            jobs = [await self.queue.get()]
            while len(jobs) < self.max_batch and not self.queue.empty():
                jobs.append(self.queue.get_nowait())
            jobs = [job for job in jobs if not job.future.done()]
            if jobs:
                with torch.inference_mode():
                    images = self.model(torch.stack([job.latents for job in jobs]))
                for job, image in zip(jobs, images):
                    job.future.set_result((image.mean().item(), image.std().item()))
            del jobs
            await asyncio.sleep(0)

    def close(self):
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()


async def client(server, name, seed):
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    answered = 0
    for n in range(JOBS_PER_CLIENT):
        side = rng.choice((96, 112, 128))
        latents = torch.randn(4, 128, 128, generator=generator)
        latents[:, side:] = 0
        try:
            await server.submit(latents)
            answered += 1
        except TimeoutError:
            pass
        await asyncio.sleep(rng.random() * 0.02)
    print(f"{name}: {answered} of {JOBS_PER_CLIENT} jobs answered")


async def main():
    server = DecodeServer(deadline=0.4)
    worker = asyncio.create_task(server.run())
    await asyncio.gather(*(client(server, f"client {i}", i) for i in range(CLIENTS)))
    worker.cancel()
    server.close()
    print("timeouts:", server.expired)


if __name__ == "__main__":
    torch.manual_seed(0)
    asyncio.run(main())
