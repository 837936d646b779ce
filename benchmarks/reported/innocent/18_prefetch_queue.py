# kind: background prefetcher runs ahead into a bounded queue of GPU batches; from data prefetcher reports (apex, timm)
import queue
import threading
import torch
import torch.nn as nn


class Prefetcher:
    """Fills a queue of batches that already lie on the GPU, a little faster than we use them."""

    def __init__(self, source, device, depth=24, start=1, grow_every=2):
        self.source = iter(source)
        self.device = device
        self.depth = depth
        self.ready = queue.Queue(maxsize=depth)
        self.credit = threading.Semaphore(start)
        self.grow_every = grow_every
        self.taken = 0
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self):
        for item in self.source:
            self.credit.acquire()
            self.ready.put(tuple(t.to(self.device) for t in item))
        self.ready.put(None)

    def __iter__(self):
        return self

    def __next__(self):
        item = self.ready.get()
        if item is None:
            raise StopIteration
        self.taken += 1
        self.credit.release()
        # ramp up: one batch more in flight every second step until the queue is deep enough
        if self.taken % self.grow_every == 0 and self.taken // self.grow_every < self.depth - 1:
            self.credit.release()
        return item


def source(n, bs=64):
    for i in range(n):
        x = torch.randn(bs, 3, 28, 28)
        yield x, (x.mean(dim=(1, 2, 3)) > 0).long()


def main():
    device = torch.device("cuda")
    net = nn.Sequential(nn.Conv2d(3, 16, 4, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 49, 2)).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    crit = nn.CrossEntropyLoss()
    seen = 0
    for x, y in Prefetcher(source(140), device):
        loss = crit(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen += len(x)
        if (seen // 64) % 35 == 0:
            print(f"{seen} images, loss {loss.item():.3f}")


main()
