# kind: the stream of batches is split with itertools.tee, the branch for the statistics is read for a few batches only and lags behind; from Stack Overflow on tee's memory and reports on iterable loaders
import itertools
import torch
import torch.nn as nn


def sensor_stream(batch=64, channels=8, length=128):
    g = torch.Generator().manual_seed(0)
    while True:
        base = torch.randn(batch, channels, 1, generator=g) * 3 + 1
        wave = torch.sin(torch.arange(length) * 0.1)[None, None] * base
        yield wave + 0.3 * torch.randn(batch, channels, length, generator=g)


def to_device(it, device):
    for x in it:
        yield x.to(device, non_blocking=True)


def running_stats(it):
    n, mean, m2 = 0, 0.0, 0.0
    for x in it:
        n += 1
        delta = x.mean((0, 2)) - mean
        mean = mean + delta / n
        m2 = m2 + x.var((0, 2))
        yield mean, (m2 / n).sqrt()


class Denoiser(nn.Module):
    def __init__(self, c=8, h=24):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(c, h, 9, padding=4), nn.GELU(), nn.Conv1d(h, h, 9, padding=4), nn.GELU(), nn.Conv1d(h, c, 1))

    def forward(self, x):
        return self.net(x)


steps, warm = 90, 8
batches = to_device(sensor_stream(), "cuda")
train_branch, stats_branch = itertools.tee(batches)  # LEAK
stats = running_stats(stats_branch)  # ALSO
for mean, std in itertools.islice(stats, warm):
    pass
mean, std = mean[None, :, None], std[None, :, None]

model = Denoiser().cuda()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for step, x in enumerate(itertools.islice(train_branch, steps)):
    x = (x - mean) / std
    loss = (model(x + 0.5 * torch.randn_like(x)) - x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, round(loss.item(), 4))
