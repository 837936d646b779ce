# kind: a MetricTracker per training run has a copy of the confusion matrices for each of its epochs, it goes with the run and the runs are of equal length; from Lightning-AI/torchmetrics issue 1949 and PR 2006 (memory management) and the tracker of PR 718
import gc

import torch
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassCohenKappa, MulticlassConfusionMatrix
from torchmetrics.wrappers import MetricTracker

CLASSES = 350


def build(hidden, dropout):
    return nn.Sequential(nn.Linear(60, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, CLASSES)).cuda()


def batches(n, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(n):
        yield torch.randn(96, 60, generator=g).cuda(), torch.randint(0, CLASSES, (96,), generator=g).cuda()


class Run:
    def __init__(self, hidden, dropout, lr):
        self.model = build(hidden, dropout)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=lr)
        scores = MetricCollection([
            MulticlassConfusionMatrix(CLASSES),
            MulticlassCohenKappa(CLASSES),
        ], compute_groups=False)
        self.tracker = MetricTracker(scores, maximize=[True, True]).cuda()

    def epoch(self, number):
        self.tracker.increment()
        for x, y in batches(6, number):
            logits = self.model(x)
            loss = nn.functional.cross_entropy(logits, y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.tracker.update(logits.detach(), y)

    def best(self):
        return float(self.tracker.compute()["MulticlassCohenKappa"])


def search():
    table = {}
    for i, (hidden, dropout, lr) in enumerate([(64, 0.0, 0.1), (64, 0.2, 0.1), (64, 0.2, 0.03), (64, 0.4, 0.03)]):
        torch.manual_seed(i)
        run = Run(hidden, dropout, lr)
        for e in range(8):
            run.epoch(e)
        table[hidden, dropout, lr] = run.best()
        del run
        gc.collect()
    return table


search()
