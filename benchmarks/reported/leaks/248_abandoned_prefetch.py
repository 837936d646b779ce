# kind: a daemon thread prefetches batches into a bounded queue, an epoch stops after a number of steps and leaves the generator, the thread stays in put() for ever with its queue of batches on the GPU, each epoch starts another one; after allenai/OLMo-core PR 721 and justheuristic/prefetch_generator issues 8 and 12
"""Segmentation with epochs of a fixed number of steps over a longer stream.

https://github.com/allenai/OLMo-core/pull/721 (thread leak in threaded_generator when consumers exit early),
https://github.com/justheuristic/prefetch_generator/issues/8
"""
import math
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset


def threaded_generator(g, maxsize=3, name="prefetch"):
    q = queue.Queue(maxsize=maxsize)
    sentinel = object()

    def fill_queue():
        try:
            for value in g:
                q.put(value)  # LEAK
        finally:
            q.put(sentinel)

    threading.Thread(target=fill_queue, name=name, daemon=True).start()  # ALSO
    while True:
        value = q.get()
        if value is sentinel:
            return
        yield value


class Blobs(IterableDataset):
    """Ellipses on noise, without end."""

    def __init__(self, size=64, seed=0):
        self.size, self.seed = size, seed
        line = torch.linspace(-1, 1, size)
        self.y, self.x = torch.meshgrid(line, line, indexing="ij")

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        self.seed += 1
        while True:
            cx, cy, a, b = torch.rand(4, generator=g).tolist()
            inside = ((self.x - cx + 0.5) / (0.2 + a)) ** 2 + ((self.y - cy + 0.5) / (0.2 + b)) ** 2 < 0.5
            noise = torch.randn(1, self.size, self.size, generator=g)
            yield inside.float()[None] + 0.5 * noise, inside.long()


class DeviceLoader:
    def __init__(self, loader, device):
        self.loader, self.device = loader, device

    def batches(self):
        for image, mask in self.loader:
            yield image.to(self.device, non_blocking=True), mask.to(self.device, non_blocking=True)

    def __iter__(self):
        return threaded_generator(self.batches())  # ALSO


class SmallUNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down1 = nn.Conv2d(1, width, 3, padding=1)
        self.down2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Conv2d(2 * width, 2, 1)

    def forward(self, x):
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(a))
        return self.out(torch.cat([a, self.up(b)], 1))


def train_epoch(model, loader, opt, schedule, steps):
    total = 0.0
    for step, (image, mask) in enumerate(loader):  # ALSO
        if step == steps:
            break
        loss = F.cross_entropy(model(image), mask)
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
        total += loss.item()
    return total / steps


@torch.no_grad()
def evaluate(model, batches=12):
    """Mean intersection over union on images of another seed."""
    model.eval()
    scores = []
    for _, (image, mask) in zip(range(batches), DataLoader(Blobs(seed=10_000), batch_size=24)):
        found, truth = model(image.to("cuda")).argmax(1).bool(), mask.to("cuda").bool()
        scores.append(((found & truth).sum() / (found | truth).sum().clamp(min=1)).item())
    return sum(scores) / len(scores)


def main(epochs=42, steps=4, batch=24):
    torch.manual_seed(0)
    model = SmallUNet().to("cuda")
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: 0.5 + 0.5 * math.cos(math.pi * i / (epochs * steps)))
    loader = DeviceLoader(DataLoader(Blobs(), batch_size=batch), "cuda")
    for epoch in range(epochs):
        loss = train_epoch(model, loader, opt, schedule, steps)
        if epoch % 6 == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, {threading.active_count()} threads")
    print(f"intersection over union {evaluate(model):.3f}")


if __name__ == "__main__":
    main()
