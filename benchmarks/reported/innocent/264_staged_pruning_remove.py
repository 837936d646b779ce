# kind: pruning in stages with torch.nn.utils.prune; why it is none: masks pile up within a stage only, prune.remove folds them in at its end
import torch
import torch.nn as nn
from torch.nn.utils import prune


class Pruner:
    def __init__(self, net, amount):
        self.layers = [m for m in net.modules() if isinstance(m, nn.Linear)][:-1]
        self.amount = amount

    def tighten(self):
        for layer in self.layers:
            prune.l1_unstructured(layer, "weight", self.amount)

    def finalize(self):
        for layer in self.layers:
            prune.remove(layer, "weight")


def fit(net, steps):
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    for _ in range(steps):
        x = torch.randn(32, 200, device="cuda")
        loss = nn.functional.mse_loss(net(x), x[:, :5].tanh())
        opt.zero_grad()
        loss.backward()
        opt.step()
    opt.zero_grad()
    return loss.item()


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 5)).cuda()
    pruner = Pruner(net, 0.08)
    for stage in range(12):
        for _ in range(5):
            pruner.tighten()
            loss = fit(net, 4)
        pruner.finalize()
    zeros = sum((p == 0).sum().item() for p in net.parameters())
    print("loss", loss, "zeros", zeros)


main()
