# kind: list of callbacks is a class variable, each new trainer of a sweep adds its own and they refer to the trainer; from facebookresearch/mmf PR 846
import itertools

import torch
import torch.nn as nn


class Callback:
    def __init__(self, trainer):
        self.trainer = trainer

    def on_update_end(self, step, loss):
        pass


class EarlyStopping(Callback):
    def __init__(self, trainer, patience=3):
        super().__init__(trainer)
        self.best, self.bad, self.patience = float("inf"), 0, patience

    def on_update_end(self, step, loss):
        if loss < self.best - 1e-4:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
        if self.bad > self.patience and self.trainer.step == step:
            self.trainer.should_stop = True


class LRWarmup(Callback):
    def on_update_end(self, step, loss):
        for g in self.trainer.optimizer.param_groups:
            g["lr"] = self.trainer.cfg["lr"] * min(1.0, (step + 1) / 4)


class Trainer:
    callbacks = []

    def __init__(self, cfg):
        self.cfg = cfg
        self.step, self.should_stop = 0, False
        self.load()

    def load(self):
        w = self.cfg["width"]
        self.model = nn.Sequential(nn.Linear(32, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 1)).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.cfg["lr"])
        self.callbacks.append(EarlyStopping(self))  # LEAK
        self.callbacks.append(LRWarmup(self))  # ALSO

    def train(self, data, max_updates):
        last = None
        for self.step in range(max_updates):
            x, y = data()
            loss = nn.functional.mse_loss(self.model(x).squeeze(-1), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            last = loss.item()
            for cb in self.callbacks:
                if cb.trainer is self:
                    cb.on_update_end(self.step, last)
            if self.should_stop:
                break
        return last


def make_data(seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(32, generator=g)

    def data():
        x = torch.randn(32, 32, generator=g)
        return x.cuda(), torch.sin(x @ w).cuda()

    return data


def sweep():
    grid = itertools.product([224, 256, 288], [1e-3, 3e-3, 1e-2], range(9))
    best = (9e9, None)
    for width, lr, seed in grid:
        torch.manual_seed(seed)
        score = Trainer({"width": width, "lr": lr}).train(make_data(seed), max_updates=4)
        best = min(best, (score, (width, lr, seed)))
    print("best", best)


sweep()
