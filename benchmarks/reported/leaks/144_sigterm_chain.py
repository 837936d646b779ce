# kind: each fit installs a SIGTERM handler that calls the handler before it, the chain of closures is never unwound and holds each trial's trainer; after radixark/miles PR 1472
import itertools
import os
import signal
import tempfile

import torch
from torch import nn


class Trainer:
    def __init__(self, width, lr, seed):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
                                   nn.Linear(width, 1)).cuda()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.step = 0
        self.stop = False

    def install_signal_handler(self, path):
        previous = signal.getsignal(signal.SIGTERM)

        def on_sigterm(signum, frame):
            self.stop = True
            torch.save({"model": self.model.state_dict(), "step": self.step}, path)
            if callable(previous):
                previous(signum, frame)

        signal.signal(signal.SIGTERM, on_sigterm)  # LEAK

    def fit(self, data, steps, path):
        self.install_signal_handler(path)  # ALSO
        for _ in range(steps):
            if self.stop:
                break
            x, y = next(data)
            loss = nn.functional.mse_loss(self.model(x).squeeze(-1), y)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            self.step += 1
        return loss.item()


def regression_stream(seed):
    gen = torch.Generator().manual_seed(seed)
    w = torch.randn(64, generator=gen)
    while True:
        x = torch.randn(256, 64, generator=gen)
        y = torch.sin(x @ w / 8)
        yield x.cuda(), y.cuda()


def main():
    data = regression_stream(3)
    best = (float("inf"), None)
    grid = itertools.product([320, 384, 448], [1e-2, 3e-3, 1e-3], range(6))
    with tempfile.TemporaryDirectory() as tmp:
        for trial, (width, lr, seed) in enumerate(grid):
            trainer = Trainer(width, lr, seed)
            loss = trainer.fit(data, steps=5, path=os.path.join(tmp, f"trial{trial}.pt"))
            if loss < best[0]:
                best = (loss, {"width": width, "lr": lr, "seed": seed})
            if trial % 18 == 17:
                print(f"trial {trial + 1}: best {best[0]:.4f} with {best[1]}")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


if __name__ == "__main__":
    main()
