# kind: innocent, EMA weights from step 10 and one best snapshot that is replaced, Adam state created lazily; from rwightman timm ModelEmaV3, Bjarten/early-stopping-pytorch
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class EarlyStopping:
    def __init__(self, patience=7, delta=0.0):
        self.patience, self.delta = patience, delta
        self.best_score, self.counter = None, 0
        self.best_state = None
        self.early_stop = False

    def __call__(self, val_loss, model):
        if self.best_score is None or val_loss < self.best_score - self.delta:
            self.best_score, self.counter = val_loss, 0
            self.best_state = copy.deepcopy(model.state_dict())
        else:
            self.counter += 1
            self.early_stop = self.counter >= self.patience


class ModelEma:
    def __init__(self, model, decay=0.98, start=10):
        self.model, self.decay, self.start = model, decay, start
        self.shadow = None
        self.updates = 0

    @torch.no_grad()
    def update(self):
        self.updates += 1
        if self.updates < self.start:
            return
        if self.shadow is None:
            self.shadow = copy.deepcopy(self.model).eval()
        for s, p in zip(self.shadow.state_dict().values(), self.model.state_dict().values()):
            if s.is_floating_point():
                s.lerp_(p, 1 - self.decay)
            else:
                s.copy_(p)

    @property
    def module(self):
        return self.shadow if self.shadow is not None else self.model


class Forecaster(nn.Module):
    def __init__(self, hidden=96, horizon=6):
        super().__init__()
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(hidden, 384), nn.GELU(), nn.Linear(384, horizon))

    def forward(self, x):
        out, _ = self.gru(x)
        return self.mlp(out[:, -1])


def waves(n, gen, length=24, horizon=6):
    phase = torch.rand(n, 1, generator=gen) * 6.28
    freq = 0.2 + 0.3 * torch.rand(n, 1, generator=gen)
    t = torch.arange(length + horizon).float()[None]
    y = torch.sin(freq * t + phase) + 0.05 * torch.randn(n, length + horizon, generator=gen)
    return y[:, :length, None].cuda(), y[:, length:].cuda()


def main(max_epochs=25, steps=8):
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(0)
    model = Forecaster().cuda()
    ema = ModelEma(model)
    stopper = EarlyStopping()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    val = waves(128, gen)
    for epoch in range(max_epochs):
        for _ in range(steps):
            x, y = waves(32, gen)
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update()
        with torch.no_grad():
            val_loss = F.mse_loss(ema.module(val[0]), val[1]).item()
        stopper(val_loss, ema.module)
        if stopper.early_stop:
            print("early stopping at", epoch)
            break
    ema.module.load_state_dict(stopper.best_state)
    print("best val loss %.4f" % stopper.best_score)


if __name__ == "__main__":
    main()
