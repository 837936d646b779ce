# kind: middleware notes each request in a table when it begins and looks it up when it ends, a plain access where a pop was meant; from jina-ai/serve PR 4791 ("pop the init time instead of normal access")
import contextlib
import itertools
import time
import types

import torch
from torch import nn


class SpeakerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(40, 64, 5, padding=2)
        self.out = nn.Linear(128, 96)

    def forward(self, mel):
        h = torch.relu(self.conv(mel))
        stats = torch.cat([h.mean(-1), h.std(-1)], dim=-1)
        return self.out(stats)


class Monitor:
    def __init__(self):
        self.begun = {}
        self.seconds = []
        self.frames = 0

    def on_begin(self, request):
        self.begun[request.id] = (time.perf_counter(), request)  # LEAK

    def on_end(self, request_id):
        start, request = self.begun[request_id]  # ALSO
        self.seconds.append(time.perf_counter() - start)
        self.frames += request.mel.shape[-1]

    @contextlib.contextmanager
    def watch(self, request):
        self.on_begin(request)
        try:
            yield request
        finally:
            self.on_end(request.id)


def incoming(n):
    g = torch.Generator().manual_seed(21)
    numbers = itertools.count(1000)
    for _ in range(n):
        frames = int(torch.randint(150, 500, (1,), generator=g))
        yield types.SimpleNamespace(id=f"r{next(numbers)}", mel=torch.randn(4, 40, frames, generator=g).cuda())


def serve(n=300):
    net, monitor = SpeakerNet().cuda().eval(), Monitor()
    centre = torch.zeros(96, device="cuda")
    for request in incoming(n):
        with monitor.watch(request), torch.no_grad():
            centre.lerp_(net(request.mel).mean(0), 0.05)


serve()
