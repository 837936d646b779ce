# kind: pruning replaces the parameters of the layers and the optimizer keeps the state of the old ones under dead keys; from FasterAI-Labs/fasterai PR 92
import torch
from torch import nn
import torch.nn.functional as F


class MLP(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims[:-1], dims[1:]))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)


class GradualPruner:
    def __init__(self, model, optimizer, every, units):
        self.model, self.optimizer = model, optimizer
        self.every, self.units = every, units

    def _replace(self, layer, name, value):
        old = getattr(layer, name)
        new = nn.Parameter(value)
        setattr(layer, name, new)  # ALSO
        for group in self.optimizer.param_groups:
            for i, p in enumerate(group["params"]):
                if p is old:
                    group["params"][i] = new  # LEAK

    @torch.no_grad()
    def prune_layer(self, index):
        layer, following = self.model.layers[index], self.model.layers[index + 1]
        importance = layer.weight.abs().sum(1) + following.weight.abs().sum(0)
        keep = importance.argsort(descending=True)[:-self.units].sort().values
        self._replace(layer, "weight", layer.weight[keep].clone())
        self._replace(layer, "bias", layer.bias[keep].clone())
        self._replace(following, "weight", following.weight[:, keep].clone())

    def step(self, iteration):
        if iteration and iteration % self.every == 0:
            for index in range(len(self.model.layers) - 1):
                self.prune_layer(index)


def batches(n):
    g = torch.Generator().manual_seed(0)
    w = torch.randn(64, 8, generator=g)
    for _ in range(n):
        x = torch.randn(64, 64, generator=g)
        yield x.cuda(), (x @ w).argmax(1).cuda()


torch.manual_seed(0)
model = MLP([64, 384, 384, 8]).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
pruner = GradualPruner(model, optimizer, every=3, units=2)
for iteration, (x, y) in enumerate(batches(150)):
    pruner.step(iteration)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("widths", [l.out_features if l.weight is None else l.weight.shape[0] for l in model.layers], "loss", loss.item())
