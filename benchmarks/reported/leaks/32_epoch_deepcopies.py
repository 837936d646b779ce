# kind: copy of the whole model with each epoch's record, the best is picked only after training; from forum posts on deepcopy of best models
import copy
from dataclasses import dataclass, field
import torch
import torch.nn as nn


class Callback:
    def on_train_begin(self, trainer): ...
    def on_epoch_end(self, trainer, logs): ...
    def on_train_end(self, trainer): ...


class RestoreBest(Callback):
    @dataclass
    class Record:
        epoch: int
        val_loss: float
        model: nn.Module = field(repr=False)

    def __init__(self, monitor="val_loss"):
        self.monitor = monitor
        self.records = []

    def on_epoch_end(self, trainer, logs):
        snap = copy.deepcopy(trainer.model)  # ALSO
        self.records.append(self.Record(logs["epoch"], logs[self.monitor], snap))  # LEAK

    def on_train_end(self, trainer):
        best = min(self.records, key=lambda r: r.val_loss)
        print("best:", best)
        trainer.model.load_state_dict(best.model.state_dict())


class Printer(Callback):
    def __init__(self, every):
        self.every = every

    def on_epoch_end(self, trainer, logs):
        if logs["epoch"] % self.every == 0:
            print(" - ".join(f"{k} {v:.4g}" for k, v in logs.items()))


class Trainer:
    def __init__(self, model, opt, loss_fn, callbacks):
        self.model, self.opt, self.loss_fn, self.callbacks = model, opt, loss_fn, callbacks

    def _each(self, name, *args):
        for cb in self.callbacks:
            getattr(cb, name)(self, *args)

    def fit(self, train, val, epochs):
        self._each("on_train_begin")
        for epoch in range(epochs):
            self.model.train()
            for x, y in train:
                loss = self.loss_fn(self.model(x), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
            self.model.eval()
            with torch.no_grad():
                val_loss = sum(self.loss_fn(self.model(x), y).item() for x, y in val) / len(val)
            self._each("on_epoch_end", {"epoch": epoch, "loss": loss.item(), "val_loss": val_loss})
        self._each("on_train_end")


def forecast_data(n_batches, device, seed):
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n_batches):
        t = torch.rand(32, 1, generator=g) * 6.28 + torch.arange(60) * 0.2
        s = t.sin() + 0.1 * torch.randn(32, 60, generator=g)
        out.append((s[:, :48].to(device), s[:, 48:].to(device)))
    return out


dev = "cuda"
model = nn.Sequential(nn.Linear(48, 384), nn.GELU(), nn.LayerNorm(384), nn.Linear(384, 384), nn.GELU(), nn.Linear(384, 12)).to(dev)
trainer = Trainer(model, torch.optim.AdamW(model.parameters(), lr=1e-3), nn.HuberLoss(), [RestoreBest(), Printer(20)])
trainer.fit(forecast_data(4, dev, 0), forecast_data(2, dev, 1), epochs=80)
