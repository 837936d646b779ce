# kind: learning without forgetting, a head is added for each of five tasks and the frozen old model is replaced by a copy at the end of a task, the last task is trained longest; from FACIL / avalanche continual learning code
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHead(nn.Module):
    def __init__(self, inputs=100, feat=160):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, feat), nn.ReLU())
        self.heads = nn.ModuleList()
        self.feat = feat

    def add_head(self, classes):
        self.heads.append(nn.Sequential(nn.Linear(self.feat, self.feat), nn.ReLU(), nn.Linear(self.feat, classes)).cuda())

    def forward(self, x):
        h = self.body(x)
        return [head(h) for head in self.heads]


class LwF:
    def __init__(self, model, temperature=2.0, strength=1.0):
        self.model, self.T, self.strength = model, temperature, strength
        self.old = None

    def distill(self, new, x):
        if self.old is None:
            return 0.0
        with torch.no_grad():
            targets = self.old(x)
        return sum(F.kl_div((n / self.T).log_softmax(1), (t / self.T).softmax(1), reduction="batchmean") for n, t in zip(new, targets))

    def learn(self, task, steps):
        self.model.add_head(task.classes)
        opt = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(steps):
            x, y = task.batch(32)
            out = self.model(x)
            loss = F.cross_entropy(out[-1], y) + self.strength * self.distill(out[:-1], x)
            opt.zero_grad()
            loss.backward()
            opt.step()
        self.old = copy.deepcopy(self.model).eval().requires_grad_(False)
        return loss.item()


class Task:
    def __init__(self, number, classes=6):
        g = torch.Generator().manual_seed(number)
        self.means = torch.randn(classes, 100, generator=g)
        self.classes = classes

    def batch(self, n):
        y = torch.randint(self.classes, (n,))
        return (self.means[y] + 0.8 * torch.randn(n, 100)).cuda(), y.cuda()

    def accuracy(self, model, head):
        x, y = self.batch(200)
        with torch.no_grad():
            return (model(x)[head].argmax(1) == y).float().mean().item()


torch.manual_seed(0)
learner = LwF(MultiHead().cuda())
tasks = []
for number, steps in enumerate([16, 16, 16, 16, 110]):
    tasks.append(Task(number))
    loss = learner.learn(tasks[-1], steps)
    accs = [f"{t.accuracy(learner.model, i):.2f}" for i, t in enumerate(tasks)]
    print(f"task {number}: loss {loss:.3f} accuracy", " ".join(accs))
