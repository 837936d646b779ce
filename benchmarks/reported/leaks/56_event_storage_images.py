# kind: put_image() of an event storage, images are taken out by the TensorBoard writer and this run has only the console one; from detectron2's EventStorage (clear_images) and nerfstudio-project/nerfstudio PR 250
import contextlib
import datetime
import time
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F

_CURRENT = []


class EventStorage:
    def __init__(self, start_iter=0):
        self.iter = start_iter
        self._history = defaultdict(list)
        self._vis_data = []

    def put_scalar(self, name, value):
        self._history[name].append((float(value), self.iter))

    def put_image(self, name, img):
        self._vis_data.append((name, img, self.iter))  # LEAK

    def median(self, name, window=20):
        vals = sorted(v for v, _ in self._history[name][-window:])
        return vals[len(vals) // 2]

    def clear_images(self):
        self._vis_data = []

    def __enter__(self):
        _CURRENT.append(self)
        return self

    def __exit__(self, *exc):
        _CURRENT.pop()


def get_event_storage():
    return _CURRENT[-1]


class ConsoleWriter:
    def __init__(self, max_iter):
        self.max_iter, self.t0 = max_iter, time.perf_counter()

    def write(self):
        s = get_event_storage()
        eta = (time.perf_counter() - self.t0) / (s.iter + 1) * (self.max_iter - s.iter)
        print(f"eta {datetime.timedelta(seconds=int(eta))} iter {s.iter} loss {s.median('total_loss'):.4f}")


class TensorboardWriter:
    def __init__(self, sink):
        self.sink = sink

    def write(self):
        s = get_event_storage()
        for name, img, it in s._vis_data:
            self.sink.add_image(name, img.cpu(), it)
        s.clear_images()


class PanopticHead(nn.Module):
    def __init__(self, vis_period=1):
        super().__init__()
        self.vis_period = vis_period
        self.net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 8, 3, 1, 1))

    def forward(self, x, target):
        logits = self.net(x)
        loss = F.cross_entropy(logits, target)
        storage = get_event_storage()
        if storage.iter % self.vis_period == 0:
            self.visualize(x, logits)
        return loss

    @torch.no_grad()
    def visualize(self, x, logits):
        palette = torch.linspace(0, 1, 8 * 3, device=x.device).view(8, 3)
        seg = palette[logits[0].argmax(0)].permute(2, 0, 1)
        seg = F.interpolate(seg[None], size=x.shape[-2:])[0]
        get_event_storage().put_image("Left: image; right: prediction", torch.cat([x[0], seg], 2))


def do_train(max_iter=120, size=128):
    model = PanopticHead().cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    writers = [ConsoleWriter(max_iter)]
    with EventStorage() as storage:
        for storage.iter in range(max_iter):
            x = torch.rand(2, 3, size, size).cuda()
            y = (F.avg_pool2d(x, 2).mean(1) * 7.99).long()
            loss = model(x, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            storage.put_scalar("total_loss", loss.item())
            if storage.iter % 30 == 29:
                for w in writers:
                    with contextlib.suppress(KeyError):
                        w.write()


do_train()
