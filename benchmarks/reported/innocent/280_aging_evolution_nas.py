# kind: regularised evolution over architectures with shared training of candidates; why it is none: the population ages, the oldest goes when there are 20
import collections
import random

import torch
import torch.nn as nn

Arch = collections.namedtuple("Arch", "width depth act")
ACTS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


def build(a):
    layers, d = [], 20
    for _ in range(a.depth):
        layers += [nn.Linear(d, a.width), ACTS[a.act]()]
        d = a.width
    return nn.Sequential(*layers, nn.Linear(d, 1)).cuda()


def mutate(a):
    gene = random.choice(a._fields)
    return a._replace(act=random.choice(list(ACTS))) if gene == "act" else a


def assess(arch, steps=6):
    net = build(arch)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        x = torch.randn(64, 20, device="cuda")
        loss = nn.functional.mse_loss(net(x), (x[:, :3].prod(1, keepdim=True)).tanh())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    net.zero_grad(set_to_none=True)
    return {"arch": arch, "net": net, "loss": loss.item()}


def search(cycles=180, size=20, sample=5):
    population, best = collections.deque(), float("inf")
    start = Arch(width=112, depth=3, act="relu")
    while cycles:
        cycles -= 1
        if len(population) < size:
            entry = assess(start._replace(act=random.choice(list(ACTS))))
        else:
            parent = min(random.sample(list(population), sample), key=lambda e: e["loss"])
            entry = assess(mutate(parent["arch"]))
        population.append(entry)
        best = min(best, entry["loss"])
        if len(population) > size:
            population.popleft()
    return best


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    print("best", search())
