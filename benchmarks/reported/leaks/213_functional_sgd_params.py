# kind: a functional training loop takes the module's parameters as they are (requires_grad=True), torch.func's gradients then carry a graph themselves and each new parameter hangs on all steps before; after pytorch/functorch issue 639
import argparse
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad_and_value


class MLP(nn.Module):
    def __init__(self, hidden=128, classes=10):
        super().__init__()
        self.fc1 = nn.Linear(64, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, classes)

    def forward(self, x):
        x = F.gelu(self.fc1(x))
        x = F.gelu(self.fc2(x))
        return self.fc3(x)


def make_functional(module):
    """Stateless version of the module together with its initial weights."""
    params = dict(module.named_parameters())

    def apply(p, x):
        return functional_call(module, p, (x,))

    return apply, params


def cross_entropy(apply, params, x, y):
    return F.cross_entropy(apply(params, x), y)


def sgd(lr):
    def update(params, grads):
        return {k: p - lr * grads[k] for k, p in params.items()}

    return update


class FunctionalTrainer:
    def __init__(self, module, lr):
        self.apply, self.params = make_functional(module)
        self.loss_and_grad = grad_and_value(partial(cross_entropy, self.apply))
        self.update = sgd(lr)

    def train_step(self, x, y):
        grads, loss = self.loss_and_grad(self.params, x, y)
        self.params = self.update(self.params, grads)  # LEAK
        return loss.item()

    @torch.no_grad()
    def accuracy(self, x, y):
        return (self.apply(self.params, x).argmax(-1) == y).float().mean().item()


def blobs(n, centers, device):
    y = torch.randint(0, len(centers), (n,))
    x = centers[y] + 0.8 * torch.randn(n, centers.shape[1])
    return x.to(device), y.to(device)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--steps-per-epoch", type=int, default=35)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()

    torch.manual_seed(0)
    device = "cuda"
    centers = torch.randn(10, 64)
    trainer = FunctionalTrainer(MLP().to(device), args.lr)
    for epoch in range(args.epochs):
        running = 0.0
        for _ in range(args.steps_per_epoch):
            running += trainer.train_step(*blobs(64, centers, device))
        acc = trainer.accuracy(*blobs(256, centers, device))
        print(f"epoch {epoch}: loss {running / args.steps_per_epoch:.3f}, accuracy {acc:.3f}")


if __name__ == "__main__":
    main()
