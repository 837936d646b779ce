# kind: a streaming encoder keeps the last left_context chunks with window[-left_context:], the deployment sets left_context to 0 since it wants none, and [-0:] is the whole list; after vibrantlabsai/ragas PR 2918, HKUDS/nanobot PR 1894 and a2aproject/a2a-python issue 573 (the Python [-0:] bug)
"""Punctuation and speaker changes for a live caption stream.

https://github.com/vibrantlabsai/ragas/pull/2918 (n=0 returns the full history, Python [-0:] bug),
https://github.com/HKUDS/nanobot/pull/1894
"""
import json
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

DEPLOYMENT = """{"chunk": 40, "dim": 512, "left_context": 0, "labels": 6}"""


@dataclass(frozen=True)
class StreamConfig:
    chunk: int  # frames that come at a time
    dim: int
    labels: int
    left_context: int = 4  # chunks that a new one can look back to, 0 for none

    @classmethod
    def parse(cls, text):
        return cls(**json.loads(text))


class ChunkAttention(nn.Module):
    """The frames of the new chunk attend to themselves and to what lies left of them."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.q, self.kv, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, chunk, window):
        def split(x):
            return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = self.kv(self.norm(window)).chunk(2, dim=-1)
        h = F.scaled_dot_product_attention(split(self.q(self.norm(chunk))), split(key), split(value))
        return chunk + self.out(h.transpose(1, 2).flatten(2))


class StreamingTagger(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.subsample = nn.Conv1d(80, config.dim, 4, stride=4)
        self.attend = ChunkAttention(config.dim)
        self.head = nn.Linear(config.dim, config.labels)

    def embed(self, fbank):
        return F.gelu(self.subsample(fbank.transpose(1, 2))).transpose(1, 2)

    def forward(self, chunk, left):
        window = torch.cat([*left, chunk], dim=1)
        return self.head(self.attend(chunk, window)).argmax(-1)


class CaptionStream:
    def __init__(self, model):
        self.model = model
        self.left = []
        self.counts = torch.zeros(model.config.labels, dtype=torch.long)

    @torch.inference_mode()
    def feed(self, fbank):
        chunk = self.model.embed(fbank.to("cuda"))
        labels = self.model(chunk, self.left)
        window = self.left + [chunk]  # ALSO
        self.left = window[-self.model.config.left_context:]  # LEAK
        self.counts += labels.flatten().cpu().bincount(minlength=len(self.counts))
        return labels


def microphone(seconds, chunk, seed=2):
    """Filterbanks, four of them for each frame of the encoder; faster than real time."""
    g = torch.Generator().manual_seed(seed)
    for _ in range(seconds):
        time.sleep(0.015)
        yield torch.randn(1, 4 * chunk, 80, generator=g)


def main(seconds=170):
    torch.manual_seed(0)
    config = StreamConfig.parse(DEPLOYMENT)
    stream = CaptionStream(StreamingTagger(config).to("cuda").eval())
    for t, fbank in enumerate(microphone(seconds, config.chunk)):
        stream.feed(fbank)
        if t % 30 == 0:
            print(f"{t} s: labels so far {stream.counts.tolist()}")


if __name__ == "__main__":
    main()
