# kind: log-probabilities of a recording's windows pile up until it is decoded and go with it, recordings get longer; from NVIDIA-NeMo issue 5755 / PR 7249 (repaired form)
from dataclasses import dataclass, field
from typing import List

import torch
from torch import nn

LETTERS = "_ abcdefghijklmnopqrstuvwxyz"


@dataclass
class Recording:
    name: str
    windows: int


@dataclass
class Partial:
    logprobs: List[torch.Tensor] = field(default_factory=list)

    def merge(self, overlap=25):
        first, *rest = self.logprobs
        return torch.cat([first] + [p[overlap:] for p in rest])


class Acoustic(nn.Module):
    def __init__(self, mels=32, hidden=64):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(mels, hidden, 9, padding=4), nn.ReLU(), nn.Conv1d(hidden, len(LETTERS) * 4, 1))

    def forward(self, x):
        return self.net(x).transpose(1, 2).log_softmax(-1)


class Transcriber:
    def __init__(self, window=400):
        self.model = Acoustic().cuda().eval()
        self.window = window
        self.texts = {}

    def audio(self, rec):
        for _ in range(rec.windows):
            yield torch.randn(1, 32, self.window)

    @torch.inference_mode()
    def transcribe(self, rec):
        partial = Partial()
        for mel in self.audio(rec):
            partial.logprobs.append(self.model(mel.cuda())[0])
        ids = partial.merge().argmax(-1).unique_consecutive().tolist()
        self.texts[rec.name] = "".join(LETTERS[i % len(LETTERS)] for i in ids if i)
        return len(self.texts[rec.name])


torch.manual_seed(0)
t = Transcriber()
jobs = [Recording(f"meeting_{i}", 10 + 3 * min(i, 8)) for i in range(12)] + [Recording(f"memo_{i}", 4) for i in range(10)]
for rec in jobs:
    n = t.transcribe(rec)
    print(rec.name, rec.windows, "windows,", n, "characters")
