# kind: ThreadPool.imap decodes ahead of the training loop, a semaphore that the source acquires and the consumer releases limits the clips in flight, the limit is raised twice; after python/cpython PR 136871
import itertools
import threading
import time
from multiprocessing.pool import ThreadPool

import torch
from torch import nn

torch.manual_seed(15)


class BoundedMap:
    def __init__(self, pool, func, source, buffersize):
        self.slots = threading.Semaphore(buffersize)
        self.stop = False
        self.results = pool.imap(func, self._feed(source))

    def _feed(self, source):
        for item in source:
            self.slots.acquire()
            if self.stop:
                return
            yield item

    def __iter__(self):
        return self

    def __next__(self):
        value = next(self.results)
        self.slots.release()
        return value

    def grow(self, extra):
        for _ in range(extra):
            self.slots.release()

    def close(self):
        self.stop = True
        self.slots.release()


def load_clip(index):
    gen = torch.Generator().manual_seed(index)
    time.sleep(0.005)
    coarse = torch.rand(1, 1, 16, 16, 16, generator=gen).cuda()
    clip = nn.functional.interpolate(coarse, scale_factor=4)
    return clip, torch.randint(0, 5, (1,), generator=gen).cuda()


def main():
    net = nn.Sequential(nn.AvgPool3d(4), nn.Flatten(), nn.Linear(4096, 64), nn.ReLU(), nn.Linear(64, 5)).cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    pool = ThreadPool(2)
    clips = BoundedMap(pool, load_clip, itertools.count(), buffersize=6)
    total = 0.0
    for step in range(300):
        clip, label = next(clips)
        loss = nn.functional.cross_entropy(net(clip), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.01)
        total += loss.item()
        if step in (60, 120):
            clips.grow(8)
        if step % 60 == 59:
            print(f"step {step + 1} loss {total / 60:.3f}")
            total = 0.0
    clips.close()
    pool.terminate()


if __name__ == "__main__":
    main()
