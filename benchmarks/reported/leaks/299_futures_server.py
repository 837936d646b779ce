# kind: pytorch/serve issue #1003 "GPU memory increasing with every request": job results are looked up by id, and stay in the table
import itertools
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn


class Upscaler(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.head = nn.Conv2d(3, c, 3, padding=1)
        self.body = nn.Sequential(*[nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.ReLU()) for _ in range(4)])
        self.tail = nn.Sequential(nn.Conv2d(c, 3 * 16, 3, padding=1), nn.PixelShuffle(4))

    def forward(self, x):
        y = self.head(x)
        return self.tail(y + self.body(y))


class JobQueue:
    """submit() returns a job id, the web front end polls status() and then asks for result()."""

    def __init__(self, model, workers=2):
        self.model = model
        self.pool = ThreadPoolExecutor(max_workers=workers)
        self.jobs = {}
        self.ids = itertools.count()

    def _work(self, image):
        with torch.inference_mode():
            return self.model(image.to("cuda", non_blocking=True)).clamp(0, 1)

    def submit(self, image):
        job = next(self.ids)
        self.jobs[job] = self.pool.submit(self._work, image)  # LEAK
        return job

    def status(self, job):
        return "done" if self.jobs[job].done() else "running"

    def result(self, job):
        return self.jobs[job].result().mul(255).byte().cpu().numpy()


def client(queue, n):
    for _ in range(n):
        job = queue.submit(torch.rand(1, 3, 160, 160))
        picture = queue.result(job)
        assert picture.shape == (1, 3, 640, 640), queue.status(job)


if __name__ == "__main__":
    queue = JobQueue(Upscaler().cuda().eval())
    client(queue, 150)
    queue.pool.shutdown()
    print("jobs", len(queue.jobs), torch.cuda.memory_allocated() >> 20, "MiB")
