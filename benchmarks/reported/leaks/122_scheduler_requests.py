# kind: finished requests and their batches refer to each other and the server runs with the collector switched off, so pixel values stay; from sgl-project/sglang PR 7340
import gc
import itertools
from collections import deque

import torch
from torch import nn


class Req:
    def __init__(self, rid, pixel_values, max_new):
        self.rid = rid
        self.pixel_values = pixel_values
        self.output_ids = []
        self.max_new = max_new
        self.batch = None

    @property
    def finished(self):
        return len(self.output_ids) >= self.max_new


class ScheduleBatch:
    def __init__(self, reqs):
        self.reqs = reqs  # ALSO
        for req in reqs:
            req.batch = self  # LEAK

    def pixel_values(self):
        return torch.stack([r.pixel_values for r in self.reqs])


class TinyVLM(nn.Module):
    def __init__(self, vocab=512):
        super().__init__()
        self.vision = nn.Sequential(nn.Conv2d(3, 16, 8, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.head = nn.Linear(256, vocab)

    def forward(self, pixel_values):
        return self.head(self.vision(pixel_values))


class Scheduler:
    def __init__(self, model, max_batch=4):
        self.model = model
        self.waiting = deque()
        self.max_batch = max_batch
        self.done = 0

    def add(self, req):
        self.waiting.append(req)

    @torch.no_grad()
    def step(self):
        reqs = [self.waiting.popleft() for _ in range(min(self.max_batch, len(self.waiting)))]
        batch = ScheduleBatch(reqs)  # ALSO
        logits = self.model(batch.pixel_values())
        for req, token in zip(batch.reqs, logits.argmax(-1).tolist()):
            req.output_ids.append(token)
            if req.finished:
                self.done += 1
            else:
                self.waiting.append(req)


def run_server(rounds):
    gc.disable()  # ALSO
    torch.manual_seed(0)
    scheduler = Scheduler(TinyVLM().cuda().eval())
    ids = itertools.count()
    for _ in range(rounds):
        for _ in range(2):
            scheduler.add(Req(next(ids), torch.rand(3, 96, 96, device="cuda"), max_new=2))
        scheduler.step()
    print("served", scheduler.done)


if __name__ == "__main__":
    run_server(120)
