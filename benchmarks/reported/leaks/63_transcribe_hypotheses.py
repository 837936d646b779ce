# kind: a transcription run returns hypotheses whose frame-wise log-probabilities stay on the GPU, only the text is used; from NVIDIA-NeMo issue 5755 and PR 7249 (transcribe_speech.py)
import json
from dataclasses import dataclass, field
from typing import List, Optional

import torch
from torch import nn

VOCAB = "_ abcdefghijklmnopqrstuvwxyz'"


@dataclass
class Hypothesis:
    score: float
    text: str
    timesteps: List[int] = field(default_factory=list)
    y_sequence: Optional[torch.Tensor] = None


class ConvASR(nn.Module):
    def __init__(self, mels=40, hidden=96, classes=len(VOCAB)):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv1d(mels, hidden, 11, padding=5), nn.ReLU(),
            nn.Conv1d(hidden, hidden, 11, padding=5, groups=8), nn.ReLU(),
        )
        self.dec = nn.Conv1d(hidden, classes, 1)

    def forward(self, feats):
        return self.dec(self.enc(feats)).transpose(1, 2).log_softmax(-1)


class GreedyCTC:
    def __init__(self, vocab, blank=0):
        self.vocab, self.blank = vocab, blank

    def __call__(self, logprobs):
        best, ids = logprobs.max(-1)
        chars, times, last = [], [], self.blank
        for t, i in enumerate(ids.tolist()):
            if i != last and i != self.blank:
                chars.append(self.vocab[i])
                times.append(t)
            last = i
        return Hypothesis(score=best.sum().item(), text="".join(chars), timesteps=times, y_sequence=logprobs)


def manifest(n):
    g = torch.Generator().manual_seed(5)
    for i in range(n):
        seconds = 16 + 16 * torch.rand(1, generator=g).item()
        yield {"audio_filepath": f"call_{i:05d}.wav", "duration": round(seconds, 2)}


def features(entry):
    frames = int(entry["duration"] * 100)
    return torch.randn(1, 40, frames)


@torch.inference_mode()
def transcribe(model, decode, entries):
    for entry in entries:
        logprobs = model(features(entry).to("cuda"))
        yield entry, decode(logprobs[0])


def main():
    torch.manual_seed(1)
    model = ConvASR().to("cuda").eval()
    decode = GreedyCTC(VOCAB)
    done, hours = {}, 0.0
    for entry, hyp in transcribe(model, decode, manifest(140)):
        hours += entry["duration"] / 3600
        done[entry["audio_filepath"]] = hyp  # LEAK
        if len(done) % 35 == 0:
            print(f"{len(done)} files, {hours:.2f} h, last: {hyp.text[:30]!r}")
    lines = [json.dumps({"audio": name, "pred_text": h.text, "score": h.score}) for name, h in done.items()]
    print(len(lines), "lines,", sum(map(len, lines)), "characters")


if __name__ == "__main__":
    main()
