# kind: metric logger holds error maps of the last 20 batches per name in deques on the GPU, the window fills and rolls; from torchvision references (SmoothedValue) and questions about its memory
from collections import defaultdict, deque
import datetime
import time

import torch
from torch import nn


class SmoothedValue:
    def __init__(self, window_size=20, fmt="{median:.4f} ({mean:.4f})"):
        self.deque = deque(maxlen=window_size)
        self.count = 0
        self.fmt = fmt

    def update(self, value):
        self.deque.append(value)
        self.count += 1

    def __str__(self):
        d = torch.stack([v.mean() for v in self.deque])
        return self.fmt.format(median=d.median().item(), mean=d.mean().item())


class MetricLogger:
    def __init__(self, delimiter="  "):
        self.meters = defaultdict(SmoothedValue)
        self.delimiter = delimiter

    def update(self, **kwargs):
        for k, v in kwargs.items():
            self.meters[k].update(v)

    def __str__(self):
        return self.delimiter.join(f"{name}: {m}" for name, m in self.meters.items())

    def log_every(self, iterable, freq, header):
        start = time.time()
        for i, obj in enumerate(iterable):
            yield obj
            if i % freq == 0:
                took = datetime.timedelta(seconds=int(time.time() - start))
                print(self.delimiter.join([header, f"[{i}]", str(self), f"time: {took}"]))


def depth_batches(n, batch=6, size=60):
    for _ in range(n):
        d = torch.rand(batch, 1, 1, 1) * torch.linspace(0.2, 1, size)[None, None, :, None].expand(batch, 1, size, size)
        yield torch.cat([d, 1 - d, d * d], 1) + 0.05 * torch.randn(batch, 3, size, size), d


torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(3, 10, 3, padding=1), nn.ReLU(), nn.Conv2d(10, 1, 3, padding=1)).cuda()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
logger = MetricLogger()
for x, d in logger.log_every(depth_batches(160), 40, "train"):
    x, d = x.cuda(), d.cuda()
    err = net(x) - d
    loss = err.abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    logger.update(abs_err=err.detach().abs(), rel_err=(err.detach().abs() / d.clamp(min=0.05)))
