# kind: released staging buffers go back to a free list, which grows to the high-water mark of buffers in use; after DiamondLightSource/httomo and memory pools of cupy style
import heapq
import weakref

import torch
from torch import nn


class BufferPool:
    def __init__(self):
        self.free = {}
        self.created = 0

    def acquire(self, size):
        bucket = 1 << (size - 1).bit_length()
        stack = self.free.setdefault(bucket, [])
        if stack:
            storage = stack.pop()
        else:
            storage = torch.empty(bucket, device="cuda")
            self.created += 1
        return Lease(self, bucket, storage, size)


class Lease:
    def __init__(self, pool, bucket, storage, size):
        self.view = storage[:size]
        self._finalizer = weakref.finalize(self, pool.free[bucket].append, storage)

    def release(self):
        self.view = None
        self._finalizer()


class Stage(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, width)

    def forward(self, x, out):
        return torch.addmm(self.proj.bias, x, self.proj.weight.t(), out=out)


def main():
    torch.manual_seed(0)
    pool = BufferPool()
    stage = Stage(128).cuda().requires_grad_(False)
    in_flight, clock, total = [], 0, 0.0
    g = torch.Generator().manual_seed(5)
    for job in range(180):
        rows = int(torch.randint(40, 250, (1,), generator=g))
        lease = pool.acquire(rows * 128)
        out = lease.view.view(rows, 128)
        stage(torch.randn(rows, 128, device="cuda"), out)
        duration = 2 + job // 6 if job < 60 else 2 + int(torch.randint(0, 8, (1,), generator=g))
        heapq.heappush(in_flight, (clock + duration, job, lease))
        clock += 1
        while in_flight and in_flight[0][0] <= clock:
            _, _, done = heapq.heappop(in_flight)
            total += done.view.abs().mean().item()
            done.release()
            del done
    print("buffers created", pool.created, "total", total)


main()
