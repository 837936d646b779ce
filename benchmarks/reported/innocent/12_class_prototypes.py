# kind: examples per class fill up to a quota for each class; from few-shot and continual-learning (exemplar memory) repositories
from collections import defaultdict
import torch
import torch.nn as nn
import torch.nn.functional as F


class ExemplarMemory:
    def __init__(self, per_class=8):
        self.per_class = per_class
        self.store = defaultdict(list)
        self.seen = defaultdict(int)

    def add(self, x, y):
        """Reservoir sampling for each class."""
        for xi, yi in zip(x, y.tolist()):
            self.seen[yi] += 1
            slot = self.store[yi]
            if len(slot) < self.per_class:
                slot.append(xi.clone())
            else:
                j = int(torch.randint(self.seen[yi], ()))
                if j < self.per_class:
                    slot[j] = xi.clone()

    def rehearsal(self, n):
        classes = list(self.store)
        xs, ys = [], []
        for k in torch.randint(len(classes), (n,)).tolist():
            c = classes[k]
            xs.append(self.store[c][int(torch.randint(len(self.store[c]), ()))])
            ys.append(c)
        return torch.stack(xs), torch.tensor(ys, device=xs[0].device)

    def prototypes(self, embed):
        with torch.no_grad():
            return {c: F.normalize(embed(torch.stack(v)).mean(0), dim=0) for c, v in self.store.items()}


class Embed(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 4, stride=4)
        self.fc = nn.Linear(8 * 12 * 12, 64)
        self.cls = nn.Linear(64, classes)

    def embed(self, x):
        return torch.tanh(self.fc(torch.relu(self.conv(x)).flatten(1)))

    def forward(self, x):
        return self.cls(self.embed(x))


def main(classes=60, steps=140):
    torch.manual_seed(4)
    device = torch.device("cuda")
    means = torch.rand(classes, 3, 1, 1, device=device)
    net = Embed(classes).to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    memory = ExemplarMemory()
    for step in range(steps):
        y = torch.randint(classes, (16,), device=device)
        x = means[y] + 0.1 * torch.randn(16, 3, 48, 48, device=device)
        memory.add(x, y)
        rx, ry = memory.rehearsal(16)
        loss = F.cross_entropy(net(torch.cat([x, rx])), torch.cat([y, ry]))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 28 == 0:
            n = sum(len(v) for v in memory.store.values())
            print(f"step {step}: {loss.item():.3f}, exemplars {n}, prototypes {len(memory.prototypes(net.embed))}")


main()
