# kind: caught exceptions kept for a report at the end, their tracebacks hold the frames' tensors; from pytorch issues 27600 / 18853
import torch
import torch.nn as nn


class NonFiniteLoss(RuntimeError):
    pass


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(32, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU())
        self.mu = nn.Linear(256, 1)
        self.scale = nn.Linear(256, 1)

    def forward(self, x):
        h = self.f(x)
        return self.mu(h), self.scale(h)


class RobustTrainer:
    def __init__(self, model, lr=1e-3):
        self.device = next(model.parameters()).device
        self.model = model
        self.opt = torch.optim.RMSprop(model.parameters(), lr=lr)
        self.bad_batches = []
        self.losses = []

    def nll(self, mu, s, y):
        loss = (torch.log(s) + (y - mu) ** 2 / (2 * s * s)).mean()
        if not torch.isfinite(loss):
            raise NonFiniteLoss(f"loss is {loss.item()}")
        return loss

    def train_batch(self, x, y):
        x, y = x.to(self.device), y.to(self.device)
        mu, s = self.model(x)
        # abs() was removed in a refactoring; every now and then the scale is negative
        s = nn.functional.softplus(s) if x[0, 0] > -0.7 else s
        loss = self.nll(mu, s, y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.losses.append(loss.item())

    def fit(self, data):
        for step, (x, y) in enumerate(data):
            try:
                self.train_batch(x, y)
            except NonFiniteLoss as err:
                self.bad_batches.append((step, err))  # LEAK
        print(f"{len(self.losses)} good batches, {len(self.bad_batches)} skipped")
        for step, err in self.bad_batches[:5]:
            print("   step", step, "->", err)


def stream(n):
    g = torch.Generator().manual_seed(3)
    for _ in range(n):
        x = torch.randn(512, 32, generator=g)
        yield x, x[:, :1] * 2 + 0.1 * torch.randn(512, 1, generator=g)


RobustTrainer(Regressor().to("cuda")).fit(stream(300))
