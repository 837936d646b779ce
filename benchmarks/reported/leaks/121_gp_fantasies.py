# kind: a hook on the cached tensor's grad_fn closes over its owner, a cycle through C++ that Python's collector cannot see; from cornellius-gp/gpytorch PR 2734
import functools

import torch
from torch import nn


def rbf(a, b, lengthscale):
    return torch.exp(-0.5 * torch.cdist(a / lengthscale, b / lengthscale).pow(2))


def clear_cache_hook(strategy, *args, **kwargs):
    strategy._memoize_cache.clear()


class PredictionStrategy:
    def __init__(self, train_x, train_y, lengthscale, noise):
        self.train_x, self.train_y = train_x, train_y
        self.lengthscale, self.noise = lengthscale, noise
        self._memoize_cache = {}

    @property
    def mean_cache(self):
        if "mean" not in self._memoize_cache:
            n = self.train_x.shape[0]
            cov = rbf(self.train_x, self.train_x, self.lengthscale)
            cov = cov + self.noise * torch.eye(n, device=cov.device)
            mean_cache = torch.linalg.solve(cov, self.train_y.unsqueeze(-1))
            wrapper = functools.partial(clear_cache_hook, self)
            mean_cache.grad_fn.register_hook(wrapper)  # LEAK
            self._memoize_cache["mean"] = mean_cache
        return self._memoize_cache["mean"]

    def predict(self, x):
        return (rbf(x, self.train_x, self.lengthscale) @ self.mean_cache).squeeze(-1)


class SurrogateModel(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.raw_lengthscale = nn.Parameter(torch.zeros(dim))
        self.raw_noise = nn.Parameter(torch.tensor(-2.0))

    def forward(self, x, y):
        softplus = nn.functional.softplus
        return PredictionStrategy(x, y, softplus(self.raw_lengthscale) + 0.1, softplus(self.raw_noise) + 1e-3)


def objective(x):
    return torch.sin(5 * x).sum(-1) - (x - 0.5).pow(2).sum(-1)


def suggest(model, x, y, samples=128):
    strategy = model(x, y)
    candidates = torch.rand(samples, x.shape[1], device=x.device)
    values = strategy.predict(candidates)
    return candidates[values.argmax()].detach()


torch.manual_seed(3)
model = SurrogateModel(4).cuda()
x = torch.rand(120, 4, device="cuda")
y = objective(x)
for round_ in range(80):
    new_x = suggest(model, x, y)
    x[round_ % 120] = new_x
    y[round_ % 120] = objective(new_x.unsqueeze(0))[0]
    x, y = x.clone(), y.clone()
print("best", y.max().item())
