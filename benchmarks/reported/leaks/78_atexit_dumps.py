# kind: unsaved predictions are written by functions registered with atexit, one for every processed scan, and stay until the process ends; from Stack Overflow answers on saving results at exit, used in a long-running worker
import atexit
import io
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

OUT = tempfile.mkdtemp(prefix="scans_")
written = []


def dump(name, heat):
    path = os.path.join(OUT, name + ".pt")
    if not os.path.exists(path):
        buf = io.BytesIO()
        torch.save(heat.half().cpu(), buf)
        written.append(len(buf.getvalue()))


class Heatmap3d(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.c1 = nn.Conv3d(1, width, 3, padding=1)
        self.c2 = nn.Conv3d(width, width, 3, padding=1)
        self.c3 = nn.Conv3d(width, 1, 1)

    def forward(self, v):
        h = F.relu(self.c1(v))
        h = F.relu(self.c2(F.avg_pool3d(h, 2)))
        return self.c3(F.interpolate(h, scale_factor=2.0))


class Inbox:
    def __init__(self, n):
        self.left = [f"scan_{i:04d}" for i in range(n)]

    def poll(self):
        return self.left.pop(0) if self.left else None


class Worker:
    def __init__(self, inbox):
        self.inbox = inbox
        self.model = Heatmap3d().cuda().eval()
        self.findings = {}

    @torch.no_grad()
    def handle(self, name):
        volume = torch.randn(1, 1, 24, 56, 56).cuda()
        heat = self.model(volume)[0, 0].sigmoid()
        z, rest = divmod(heat.argmax().item(), 56 * 56)
        self.findings[name] = (z, *divmod(rest, 56), round(heat.max().item(), 3))
        atexit.register(dump, name, heat)  # LEAK

    def run(self):
        start = time.time()
        while (name := self.inbox.poll()) is not None:
            self.handle(name)
            if len(self.findings) % 25 == 0:
                print(name, self.findings[name], f"{time.time() - start:.1f} s")


if __name__ == "__main__":
    torch.manual_seed(0)
    Worker(Inbox(100)).run()
