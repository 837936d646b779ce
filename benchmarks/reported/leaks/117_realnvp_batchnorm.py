# kind: the running variance of a hand-written batch norm is updated with the graph attached, so every step's inputs stay; from bayesiains/nflows issue 10 and facebookresearch/synsin PR 20
import math
import torch
from torch import nn


class FlowBatchNorm(nn.Module):
    def __init__(self, features, momentum=0.1, eps=1e-5):
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.log_weight = nn.Parameter(torch.zeros(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))

    def forward(self, x):
        if self.training:
            mean = x.mean(0)
            var = ((x - mean) ** 2).mean(0)
            unbiased = x.var(0)  # ALSO
            self.running_mean = (1 - self.momentum) * self.running_mean + self.momentum * mean.detach()
            self.running_var = (1 - self.momentum) * self.running_var + self.momentum * unbiased  # LEAK
        else:
            mean, var = self.running_mean, self.running_var
        y = torch.exp(self.log_weight) * (x - mean) / torch.sqrt(var + self.eps) + self.bias
        logdet = (self.log_weight - 0.5 * torch.log(var + self.eps)).sum()
        return y, logdet.expand(x.shape[0])


class Coupling(nn.Module):
    def __init__(self, features, hidden, flip):
        super().__init__()
        self.flip = flip
        half = features // 2
        self.net = nn.Sequential(nn.Linear(half, hidden), nn.ReLU(), nn.Linear(hidden, 2 * half))

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        if self.flip:
            a, b = b, a
        shift, log_scale = self.net(a).chunk(2, dim=1)
        log_scale = torch.tanh(log_scale)
        b = b * log_scale.exp() + shift
        out = torch.cat([b, a] if self.flip else [a, b], dim=1)
        return out, log_scale.sum(1)


class RealNVP(nn.Module):
    def __init__(self, features, hidden, layers):
        super().__init__()
        steps = []
        for i in range(layers):
            steps += [Coupling(features, hidden, bool(i % 2)), FlowBatchNorm(features)]
        self.steps = nn.ModuleList(steps)
        self.features = features

    def log_prob(self, x):
        total = torch.zeros(x.shape[0], device=x.device)
        for step in self.steps:
            x, logdet = step(x)
            total = total + logdet
        base = -0.5 * (x ** 2).sum(1) - 0.5 * self.features * math.log(2 * math.pi)
        return base + total


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    flow = RealNVP(features=32, hidden=64, layers=3).to(device)
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
    for it in range(150):
        z = torch.randn(256, 32, device=device)
        x = z + 0.3 * torch.sin(3 * z.roll(1, dims=1))
        optimizer.zero_grad()
        loss = -flow.log_prob(x).mean()
        loss.backward()
        optimizer.step()
        if it % 30 == 0:
            print(f"iter {it} nll {loss.item():.3f}")


if __name__ == "__main__":
    main()
