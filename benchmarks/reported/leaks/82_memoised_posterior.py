# kind: kernel predictor memoises its weights for each set of look-ahead points and registers a hook on the cached tensor's grad_fn that clears the memo, so that the predictor hangs on its own graph where the garbage collector cannot see it; from cornellius-gp/gpytorch issue 2631 / PR 2734 and meta-pytorch/botorch issue 2728
import functools

import torch
from torch import nn


def memoised(method):
    name = method.__name__

    @functools.wraps(method)
    def wrapper(self):
        memo = self.__dict__.setdefault("_memo", {})
        if name not in memo:
            memo[name] = method(self)
        return memo[name]

    return wrapper


def forget(strategy, *_):
    strategy.__dict__.pop("_memo", None)


class Kernel(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(dim))
        self.warp = nn.Sequential(nn.Linear(dim, 32), nn.Tanh(), nn.Linear(32, dim))

    def forward(self, a, b):
        a, b = self.warp(a) * self.log_scale.exp(), self.warp(b) * self.log_scale.exp()
        return torch.exp(-(a.unsqueeze(-2) - b.unsqueeze(-3)).pow(2).sum(-1))


class PredictionStrategy:
    def __init__(self, kernel, x, y, iterations=8):
        self.kernel, self.x, self.y, self.iterations = kernel, x, y, iterations

    @property
    @memoised
    def mean_cache(self):
        k = self.kernel(self.x, self.x)
        alpha = self.y / k.sum(-1)
        for _ in range(self.iterations):
            residual = self.y - (k @ alpha.unsqueeze(-1)).squeeze(-1) - 0.1 * alpha
            alpha = alpha + residual / (k.sum(-1) + 0.1)
        alpha.grad_fn.register_hook(functools.partial(forget, self))  # LEAK
        return alpha

    def mean(self, points):
        return (self.kernel(points, self.x) @ self.mean_cache.unsqueeze(-1)).squeeze(-1)

    def with_fantasy(self, x, y):
        return PredictionStrategy(self.kernel, torch.cat([self.x, x]), torch.cat([self.y, y]), self.iterations)


def knowledge_gradient(base, candidate, grid):
    guess = base.mean(candidate).detach()
    after = base.with_fantasy(candidate, guess)
    return float(after.mean(grid).max().detach())


def main():
    torch.manual_seed(0)
    dev = torch.device("cuda")
    x = torch.rand(48, 5, device=dev)
    y = torch.sin(4 * x.sum(-1))
    kernel = Kernel(5).to(dev)
    base = PredictionStrategy(kernel, x, y)
    grid = torch.rand(32, 5, device=dev)
    scores = []
    for it in range(200):
        candidate = torch.rand(3, 5, device=dev)
        scores.append((knowledge_gradient(base, candidate, grid), it))
    scores.sort(reverse=True)


if __name__ == "__main__":
    main()
