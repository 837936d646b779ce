# kind: the error for clips that are too short is made once as a class attribute and raised again and again, every raise puts another traceback in front of the earlier ones, their frames hold the clip and the half-built batch; after patx/pickledb issue 70, ipython/ipython PR 8017 and gpustack/gpustack PR 5255
"""Keyword spotting with clips of natural length.

https://github.com/patx/pickledb/issues/70 (reuse of exception causing memory leak),
https://github.com/gpustack/gpustack/pull/5255 (module-level exceptions kept their tracebacks)
"""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

RATE = 8000
WORDS = ["yes", "no", "up", "down", "left", "right", "on", "off"]


class ClipError(ValueError):
    pass


class WindowCutter:
    """Pre-emphasis, then a random window of fixed length."""

    too_short = ClipError("the clip is shorter than the window")

    def __init__(self, seconds=0.8, coefficient=0.97):
        self.size = int(seconds * RATE)
        self.coefficient = coefficient

    def __call__(self, wave):
        emphasised = wave[1:] - self.coefficient * wave[:-1]
        if emphasised.numel() < self.size:
            raise self.too_short  # LEAK
        start = random.randrange(emphasised.numel() - self.size + 1)
        return emphasised[start:start + self.size]


class Speech:
    def __init__(self, seed=0):
        self.rng = random.Random(seed)

    def clips(self, n):
        for _ in range(n):
            label = self.rng.randrange(len(WORDS))
            t = torch.arange(int(self.rng.uniform(0.65, 1.4) * RATE)) / RATE
            tone = torch.sin(2 * torch.pi * (200 + 110 * label) * t)
            yield tone + 0.3 * torch.randn(len(t)), label


class Spotter(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.filterbank = nn.Conv1d(1, width, 400, stride=160)
        self.conv = nn.Sequential(nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU())
        self.head = nn.Linear(width, len(WORDS))

    def forward(self, waves):
        bands = torch.log1p(self.filterbank(waves[:, None]).square())
        return self.head(self.conv(bands).mean(-1))


class Trainer:
    def __init__(self):
        self.model = Spotter().to("cuda")
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.cut = WindowCutter()
        self.skipped = 0

    def assemble(self, clips):
        windows, labels = [], []
        for wave, label in clips:
            try:
                windows.append(self.cut(wave.to("cuda")))  # ALSO
            except ClipError:
                self.skipped += 1
                continue
            labels.append(label)
        return torch.stack(windows), torch.tensor(labels, device="cuda")

    def step(self, clips):
        waves, labels = self.assemble(clips)
        loss = F.cross_entropy(self.model(waves), labels)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def main(steps=140, batch=20):
    random.seed(0)
    torch.manual_seed(0)
    trainer, speech = Trainer(), Speech()
    for i in range(steps):
        loss = trainer.step(speech.clips(batch))
        if i % 20 == 0:
            print(f"step {i}: loss {loss:.3f}, {trainer.skipped} clips skipped")


if __name__ == "__main__":
    main()
