# kind: running average of an overlap measure that still has its graph, meters of the whole run; from visionml/pytracking PR 313 (LTRTrainer._update_stats) and BatsResearch/labelmodels issue 4
from collections import OrderedDict

import torch
from torch import nn, optim


class StatValue:
    def __init__(self):
        self.val = 0
        self.sum = 0
        self.count = 0

    @property
    def avg(self):
        return self.sum / max(self.count, 1)

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n  # LEAK
        self.count += n


class MaskTracker(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(inplace=True))
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, search):
        return self.head(self.body(self.stem(search)))


class TrackingActor:
    def __init__(self, net, objective):
        self.net = net
        self.objective = objective

    def __call__(self, data):
        logits = self.net(data["search"])
        loss = self.objective(logits, data["mask"])
        prob = logits.sigmoid()
        inter = (prob * data["mask"]).sum((1, 2, 3))
        union = (prob + data["mask"] - prob * data["mask"]).sum((1, 2, 3))
        stats = {"Loss/total": loss.item(), "Stats/soft_iou": (inter / union).mean()}
        return loss, stats


class LTRTrainer:
    def __init__(self, actor, optimizer, print_interval=25):
        self.actor = actor
        self.optimizer = optimizer
        self.stats = OrderedDict()
        self.print_interval = print_interval

    def _update_stats(self, new_stats, batch_size):
        for name, val in new_stats.items():
            if name not in self.stats:
                self.stats[name] = StatValue()
            self.stats[name].update(val, batch_size)

    def _print_stats(self, i, total):
        text = ", ".join("{}: {:.4f}".format(k, float(v.avg)) for k, v in self.stats.items())
        print("[train: {}/{}] {}".format(i, total, text))

    def cycle_dataset(self, loader):
        for i, data in enumerate(loader, 1):
            data = {k: v.to("cuda") for k, v in data.items()}
            loss, stats = self.actor(data)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self._update_stats(stats, data["search"].shape[0])
            if i % self.print_interval == 0:
                self._print_stats(i, len(loader))


class Sequences:
    def __init__(self, n, batch=6, size=96):
        self.n, self.batch, self.size = n, batch, size

    def __len__(self):
        return self.n

    def __iter__(self):
        for _ in range(self.n):
            mask = torch.zeros(self.batch, 1, self.size, self.size)
            for m in mask:
                x, y = torch.randint(0, self.size // 2, (2,)).tolist()
                m[0, y:y + 30, x:x + 30] = 1
            yield {"search": torch.rand(self.batch, 3, self.size, self.size) * 0.5 + mask * 0.5, "mask": mask}


net = MaskTracker().cuda()
trainer = LTRTrainer(TrackingActor(net, nn.BCEWithLogitsLoss()), optim.Adam(net.parameters(), lr=1e-3))
trainer.cycle_dataset(Sequences(100))
