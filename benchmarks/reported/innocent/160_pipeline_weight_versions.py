# kind: micro-batches wait with their graph and the version of the weights that they went forward with for a backward pass some ticks later, the number in flight is raised step by step to its full depth; after asynchronous pipeline training (PipeDream weight stashing)
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

device = torch.device("cuda")
FULL_DEPTH = 14
WARMUP_TICKS = 7


class Stage(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=stride, padding=1)
        self.norm = nn.GroupNorm(8, cout)

    def forward(self, x):
        return F.silu(self.norm(self.conv(x)))


class Network(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stages = nn.Sequential(Stage(3, 32, 1), Stage(32, 64, 2), Stage(64, 128, 2), Stage(128, 128, 1))
        self.fc = nn.Linear(128, classes)

    def forward(self, x):
        return self.fc(self.stages(x).mean(dim=(2, 3)))


class AsyncPipeline:
    def __init__(self, model, lr):
        self.model = model
        self.lr = lr
        self.in_flight = deque()
        self.velocity = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        self.version = 0
        self.staleness = []

    def forward(self, images, labels):
        stash = {n: p.detach().clone().requires_grad_() for n, p in self.model.named_parameters()}
        logits = functional_call(self.model, stash, (images,))
        loss = F.cross_entropy(logits, labels)
        self.in_flight.append((self.version, stash, loss))

    def backward(self):
        born, stash, loss = self.in_flight.popleft()
        names = list(stash)
        grads = torch.autograd.grad(loss, [stash[n] for n in names])
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, grad in zip(names, grads):
                v = self.velocity[name].mul_(0.5).add_(grad)
                own[name].sub_(v, alpha=self.lr)
        self.staleness.append(self.version - born)
        self.version += 1
        return loss.item()

    def flush(self):
        while self.in_flight:
            self.backward()


def make_batch(prototypes, size=16):
    labels = torch.randint(0, len(prototypes), (size,), device=device)
    return prototypes[labels] + 0.5 * torch.randn(size, 3, 32, 32, device=device), labels


def main():
    torch.manual_seed(0)
    prototypes = torch.randn(10, 3, 32, 32, device=device)
    model = Network().to(device)
    pipe = AsyncPipeline(model, lr=0.004)
    losses = []
    for tick in range(210):
        depth = min(1 + tick // WARMUP_TICKS, FULL_DEPTH)
        pipe.forward(*make_batch(prototypes))
        while len(pipe.in_flight) > depth:
            losses.append(pipe.backward())
        if tick % 30 == 29:
            recent = losses[-20:]
            print(f"tick {tick}: depth {len(pipe.in_flight)}, version {pipe.version}, "
                  f"staleness {pipe.staleness[-1]}, loss {sum(recent) / len(recent):.3f}")
    pipe.flush()
    images, labels = make_batch(prototypes, 64)
    with torch.no_grad():
        print("accuracy", (model(images).argmax(1) == labels).float().mean().item())


if __name__ == "__main__":
    main()
