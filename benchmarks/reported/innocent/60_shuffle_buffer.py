# kind: shuffle buffer of a streamed data set on the GPU fills up to its size, then each sample that comes in replaces the one that goes out; from webdataset / IterableDataset shuffling code
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        g = torch.Generator().manual_seed(0)
        for i in range(self.n):
            tone = torch.arange(4000) * (0.01 + 0.002 * (i * 7 % 8))
            yield tone.sin() + 0.1 * torch.randn(4000, generator=g), i * 7 % 8


def on_gpu(source):
    for wave, label in source:
        yield wave.cuda(), label


def shuffled(source, size, rng):
    buf = []
    for sample in source:
        if len(buf) < size:
            buf.append(sample)
            if len(buf) < size // 8:
                continue
        k = rng.randrange(len(buf))
        if len(buf) < size and rng.random() < 0.5:
            continue
        if len(buf) == size:
            buf[k], sample = sample, buf[k]
            yield sample
        else:
            yield buf.pop(k)
    rng.shuffle(buf)
    yield from buf


def batched(source, n):
    batch = []
    for sample in source:
        batch.append(sample)
        if len(batch) == n:
            yield torch.stack([s[0] for s in batch]), torch.tensor([s[1] for s in batch], device="cuda")
            batch = []


class Tones(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, 16, 64, 16), nn.ReLU(), nn.Conv1d(16, 16, 8, 4), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(64, 8))

    def forward(self, x):
        return self.net(x.unsqueeze(1))


def main():
    rng = random.Random(0)
    torch.manual_seed(0)
    net = Tones().cuda()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    loader = DataLoader(Stream(1900), batch_size=None)
    for i, (x, y) in enumerate(batched(shuffled(on_gpu(loader), 600, rng), 8)):
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 40 == 0:
            print("it", i, "loss %.3f" % loss.item())


main()
