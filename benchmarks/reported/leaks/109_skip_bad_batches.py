# kind: caught exceptions are kept for a report, their tracebacks keep frames with the batch and activations; from pytorch/pytorch issue 10348 (skorch)
import logging

import torch
import torch.nn as nn

logging.basicConfig(level=logging.ERROR)
log = logging.getLogger("train")


class NonFiniteLoss(RuntimeError):
    pass


class Regressor(nn.Module):
    def __init__(self, dim=40, hidden=128):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.mean = nn.Linear(hidden, 1)
        self.log_var = nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.encoder(x)
        return self.mean(h).squeeze(1), self.log_var(h).squeeze(1)


class NeuralNet:
    def __init__(self, module, lr=1e-3, max_epochs=8):
        self.module = module.cuda()
        self.optimizer = torch.optim.Adam(module.parameters(), lr=lr)
        self.max_epochs = max_epochs
        self.history = []
        self.failed_batches = []

    def train_step_single(self, xi, yi):
        mean, log_var = self.module(xi)
        loss = 0.5 * (log_var + (yi - mean) ** 2 / log_var.exp()).mean()
        if not torch.isfinite(loss):
            raise NonFiniteLoss(f"loss is {loss.item()}")
        loss.backward()
        return loss

    def train_step(self, xi, yi):
        self.optimizer.zero_grad()
        loss = self.train_step_single(xi, yi)
        nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def fit_loop(self, make_batches):
        for epoch in range(self.max_epochs):
            losses = []
            for idx, (xi, yi) in enumerate(make_batches(epoch)):
                try:
                    losses.append(self.train_step(xi.cuda(), yi.cuda()))
                except NonFiniteLoss as exc:
                    log.debug("epoch %d batch %d skipped: %s", epoch, idx, exc)
                    self.failed_batches.append((epoch, idx, exc))  # LEAK
            self.history.append({"epoch": epoch, "loss": sum(losses) / len(losses)})

    def report(self):
        for row in self.history[-2:]:
            print("epoch {epoch} loss {loss:.4f}".format(**row))
        print("skipped", len(self.failed_batches), "last:", self.failed_batches[-1][2])


def sensor_batches(epoch, n=25, batch=144):
    gen = torch.Generator().manual_seed(100 + epoch)
    for i in range(n):
        x = torch.randn(batch, 40, generator=gen)
        y = x[:, :4].sum(1) + 0.1 * torch.randn(batch, generator=gen)
        if i % 2 == 1:
            x[torch.randint(0, batch, (1,), generator=gen)] = float("nan")
        yield x, y


if __name__ == "__main__":
    torch.manual_seed(0)
    net = NeuralNet(Regressor())
    net.fit_loop(sensor_batches)
    net.report()
