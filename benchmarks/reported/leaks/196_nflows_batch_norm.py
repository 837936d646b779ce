# kind: running_mean and running_var are updated in place with the graph of the batch statistics, so they keep the graph of every forward that had no backward; after bayesiains/nflows PR 11
import math

import torch
import torch.nn as nn
from torch import optim


class BatchNorm(nn.Module):
    """Transform that performs batch normalization."""

    def __init__(self, features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.unconstrained_weight = nn.Parameter(torch.zeros(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.zeros(features))

    @property
    def weight(self):
        return torch.nn.functional.softplus(self.unconstrained_weight) + self.eps

    def forward(self, inputs):
        if self.training:
            mean, var = inputs.mean(0), inputs.var(0)
            self.running_mean.mul_(1 - self.momentum).add_(mean * self.momentum)  # LEAK
            self.running_var.mul_(1 - self.momentum).add_(var * self.momentum)  # ALSO
        else:
            mean, var = self.running_mean, self.running_var
        outputs = self.weight * ((inputs - mean) / torch.sqrt(var + self.eps)) + self.bias
        logabsdet = torch.log(self.weight) - 0.5 * torch.log(var + self.eps)
        return outputs, torch.sum(logabsdet) * torch.ones(inputs.shape[0], device=inputs.device)


class AffineCoupling(nn.Module):
    def __init__(self, features, hidden, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(features // 2, hidden), nn.ReLU(),
                                 nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, features))

    def forward(self, inputs):
        a, b = inputs.chunk(2, dim=1)
        if self.flip:
            a, b = b, a
        scale, shift = self.net(a).chunk(2, dim=1)
        scale = torch.sigmoid(scale + 2) + 1e-3
        b = b * scale + shift
        return torch.cat([a, b], dim=1), torch.log(scale).sum(dim=1)


class SimpleRealNVP(nn.Module):
    def __init__(self, features, hidden_features, num_layers, batch_norm_between_layers=False):
        super().__init__()
        layers = []
        for i in range(num_layers):
            layers.append(AffineCoupling(features, hidden_features, flip=i % 2 == 1))
            if batch_norm_between_layers:
                layers.append(BatchNorm(features))
        self.transforms = nn.ModuleList(layers)

    def log_prob(self, inputs):
        total = 0
        for t in self.transforms:
            inputs, logabsdet = t(inputs)
            total = total + logabsdet
        base = -0.5 * (inputs ** 2).sum(dim=1) - 0.5 * inputs.shape[1] * math.log(2 * math.pi)
        return base + total


def make_moons(n):
    t = torch.rand(n) * math.pi
    upper = torch.rand(n) < 0.5
    x = torch.where(upper, torch.cos(t), 1 - torch.cos(t))
    y = torch.where(upper, torch.sin(t), 0.5 - torch.sin(t))
    return torch.stack([x, y], dim=1) + 0.1 * torch.randn(n, 2)


if __name__ == "__main__":
    torch.manual_seed(0)
    device = torch.device("cuda")
    flow = SimpleRealNVP(2, 32, 4, batch_norm_between_layers=True).to(device)
    optimizer = optim.Adam(flow.parameters())
    held_out = make_moons(1024).to(device)
    num_iter = 100
    for i in range(num_iter):
        x = make_moons(1024).to(device)
        optimizer.zero_grad()
        loss = -flow.log_prob(inputs=x).mean()
        loss.backward()
        optimizer.step()
        val = flow.log_prob(inputs=held_out).mean().item()
        if i % 25 == 0:
            print(i, loss.item(), val)
