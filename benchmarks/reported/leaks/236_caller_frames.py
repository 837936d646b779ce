# kind: a home-made stopwatch keeps the FrameInfo of whoever called it to print file and line at the end, the frame of each training step stays with its local variables; after NVIDIA/PyProf PR 57 (inspect.stack() and GPU out of memory), pandas-dev/pandas issue 54628 and the warning in Python's inspect documentation
import inspect
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Lap:
    label: str
    seconds: float
    site: inspect.FrameInfo

    def where(self):
        return f"{self.site.function}:{self.site.lineno}"


class Stopwatch:
    def __init__(self):
        self.laps = defaultdict(list)
        self.last = time.perf_counter()

    def start(self):
        self.last = time.perf_counter()

    def lap(self, label):
        now = time.perf_counter()
        caller = inspect.stack(context=0)[1]
        self.laps[label].append(Lap(label, now - self.last, caller))  # LEAK
        self.last = now

    def report(self):
        for label, laps in self.laps.items():
            slowest = max(laps, key=lambda lap: lap.seconds)
            yield f"{label}: median {1e3 * statistics.median(l.seconds for l in laps):.1f} ms, slowest at {slowest.where()}"


watch = Stopwatch()


class Captioner(nn.Module):
    """Grid features, one attention layer, a word head."""

    def __init__(self, vocab=200, dim=64):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 8, stride=8)
        self.words = nn.Embedding(vocab, dim)
        self.attend = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, images, tokens):
        grid = self.patches(images).flatten(2).transpose(1, 2)
        text = self.words(tokens)
        context, _ = self.attend(text, grid, grid, need_weights=False)
        return self.out(text + context)


def sample(batch):
    images = torch.rand(batch, 3, 64, 64)
    tokens = (images.mean((1, 2, 3))[:, None] * 2000).long().add(torch.arange(13)) % 200
    return images, tokens


def training_step(net, opt, batch):
    watch.start()
    images, tokens = (t.cuda() for t in batch)
    watch.lap("upload")
    logits = net(images, tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    watch.lap("forward")
    opt.zero_grad()
    loss.backward()
    opt.step()
    watch.lap("backward")
    return loss.item()


def main(steps=70):
    torch.manual_seed(0)
    net = Captioner().cuda()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(steps):
        loss = training_step(net, opt, sample(16))
        if step % 20 == 0:
            print(f"step {step}: loss {loss:.3f}")
    print(*watch.report(), sep="\n")


if __name__ == "__main__":
    main()
