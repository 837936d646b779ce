# kind: bootstrap copies of list-state metrics are updated with every validation batch, the module resets its main metrics only, so the copies keep all epochs; from behavioral-data/Homekit2020 issue 13
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


class Metric:
    def __init__(self):
        self.reset()

    def reset(self):
        self.preds, self.target = [], []

    def update(self, preds, target):
        self.preds.append(preds)  # LEAK
        self.target.append(target)  # ALSO

    def _state(self):
        return torch.cat(self.preds), torch.cat(self.target)


class BinaryROCAUC(Metric):
    def compute(self):
        p, t = self._state()
        order = p[:, 1].argsort()
        ranks = torch.empty_like(order, dtype=torch.float)
        ranks[order] = torch.arange(1, len(p) + 1, device=p.device, dtype=torch.float)
        pos = t.sum().clamp(min=1)
        neg = (len(t) - t.sum()).clamp(min=1)
        return ((ranks[t == 1].sum() - pos * (pos + 1) / 2) / (pos * neg)).item()


class Calibration(Metric):
    def compute(self):
        p, t = self._state()
        return (p.softmax(1)[:, 1].mean() - t.float().mean()).abs().item()


class BootStrapper:
    """Holds copies of a metric, each sees every batch resampled."""

    def __init__(self, base, n):
        self.metrics = [copy.deepcopy(base) for _ in range(n)]

    def update(self, preds, target):
        for m in self.metrics:
            idx = torch.randint(0, len(preds), (len(preds),), device=preds.device)
            m.update(preds[idx], target[idx])  # ALSO

    def compute(self):
        values = torch.tensor([m.compute() for m in self.metrics])
        return values.mean().item(), values.std().item()


class ClassificationEvaluator:
    def __init__(self, bootstraps):
        self.main = {"roc_auc": BinaryROCAUC(), "calibration": Calibration()}
        self.boot = {k: BootStrapper(m, bootstraps) for k, m in self.main.items()} if bootstraps else {}

    def update(self, preds, target):
        for m in self.main.values():
            m.update(preds, target)
        for b in self.boot.values():
            b.update(preds, target)

    def compute(self):
        out = {k: m.compute() for k, m in self.main.items()}
        for k, b in self.boot.items():
            out[k + "_boot"], out[k + "_std"] = b.compute()
        return out

    def reset(self):
        for m in self.main.values():
            m.reset()


@dataclass
class Config:
    epochs: int = 35
    val_batches: int = 3
    batch_size: int = 256
    val_bootstraps: int = 10


class SensorModel(nn.Module):
    """CNN over a week of minute-level activity, predicts the flu."""

    def __init__(self, cfg):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(8, 16, 9, 4), nn.ReLU(), nn.Conv1d(16, 16, 9, 4), nn.ReLU(),
                                 nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 2))
        self.val_evaluator = ClassificationEvaluator(cfg.val_bootstraps)

    def forward(self, x):
        return self.net(x)

    def training_step(self, x, y):
        return F.cross_entropy(self(x), y)

    def validation_step(self, x, y):
        self.val_evaluator.update(self(x).detach(), y)

    def on_validation_epoch_end(self):
        results = self.val_evaluator.compute()
        self.val_evaluator.reset()
        return results


def batch(cfg):
    y = torch.randint(0, 2, (cfg.batch_size,))
    x = torch.randn(cfg.batch_size, 8, 200) + 0.1 * y[:, None, None]
    return x.cuda(), y.cuda()


def main():
    torch.manual_seed(0)
    cfg = Config()
    model = SensorModel(cfg).cuda()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(cfg.epochs):
        for _ in range(2):
            loss = model.training_step(*batch(cfg))
            opt.zero_grad()
            loss.backward()
            opt.step()
        with torch.no_grad():
            for _ in range(cfg.val_batches):
                model.validation_step(*batch(cfg))
        results = model.on_validation_epoch_end()
        if epoch % 7 == 0:
            print(epoch, f"loss {loss.item():.3f}", {k: round(v, 3) for k, v in results.items()})


if __name__ == "__main__":
    main()
