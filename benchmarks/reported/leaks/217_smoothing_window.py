# kind: the window that smooths segmentation maps over time is a deque whose length is read from the config under a name that the file does not have, and maxlen=None means no limit; from video demo scripts and forum questions on deque windows
import json
from collections import deque
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = """
{
  "input": {"size": [128, 160], "frames": 160},
  "model": {"width": 16, "classes": 12},
  "postprocess": {"smoothing": "temporal", "window_size": 8, "threshold": 0.05}
}
"""


class Segmenter(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, width, 4, 4), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        return F.interpolate(self.head(self.down(x)), size=x.shape[-2:], mode="bilinear")


class Postprocessor:
    def __call__(self, probs):
        raise NotImplementedError

    @classmethod
    def from_config(cls, cfg):
        kind = cfg.get("smoothing", "none")
        return {"none": Plain, "temporal": TemporalSmoother}[kind].build(cfg)


class Plain(Postprocessor):
    @classmethod
    def build(cls, cfg):
        return cls()

    def __call__(self, probs):
        return probs.argmax(1)


class TemporalSmoother(Postprocessor):
    """Running mean of the last class probabilities."""

    def __init__(self, window, threshold):
        self.history = deque(maxlen=window)
        self.threshold = threshold
        self.total = None

    @classmethod
    def build(cls, cfg):
        return cls(cfg.get("window"), cfg.get("threshold", 0.5))

    def _push(self, probs):
        if self.history.maxlen is not None and len(self.history) == self.history.maxlen:
            self.total -= self.history[0]
        self.history.append(probs)  # LEAK
        self.total = probs.clone() if self.total is None else self.total.add_(probs)

    def __call__(self, probs):
        self._push(probs)
        mean = self.total / len(self.history)
        conf, label = mean.max(1)
        label[conf < self.threshold] = 0
        return label


class Demo:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = Segmenter(**cfg["model"]).to("cuda").eval()
        self.post = Postprocessor.from_config(cfg["postprocess"])

    def camera(self):
        spec = SimpleNamespace(**self.cfg["input"])
        h, w = spec.size
        base = torch.rand(1, 3, h, w)
        for t in range(spec.frames):
            yield t, torch.roll(base, t, dims=-1) + 0.05 * torch.randn(1, 3, h, w)

    @torch.inference_mode()
    def process(self, frame):
        probs = self.model(frame.to("cuda")).softmax(1)
        return self.post(probs)

    def run(self):
        changed, last = 0.0, None
        for t, frame in self.camera():
            labels = self.process(frame).cpu()
            if last is not None:
                changed += (labels != last).float().mean().item()
            last = labels
            if t % 40 == 0:
                print(f"frame {t}: {labels.unique().numel()} classes, flicker {changed / max(t, 1):.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    Demo(json.loads(CONFIG)).run()
