# kind: chain of closures, each new task's penalty calls the one before and keeps Fisher and weights of every task; from continual learning (EWC) code on long streams
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
device = torch.device("cuda")


def no_penalty(model):
    return 0.0


class Learner:
    def __init__(self, lam=50.0):
        self.model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
        self.model.to(device)
        self.lam = lam
        self.penalty = no_penalty

    def train_task(self, data, steps=3):
        opt = torch.optim.SGD(self.model.parameters(), lr=0.01)
        for _ in range(steps):
            x, y = data()
            loss = F.cross_entropy(self.model(x), y) + self.lam * self.penalty(self.model)
            opt.zero_grad()
            loss.backward()
            opt.step()
        return loss.item()

    def fisher(self, data, batches=2):
        out = {n: torch.zeros_like(p) for n, p in self.model.named_parameters()}
        for _ in range(batches):
            x, y = data()
            self.model.zero_grad()
            F.nll_loss(F.log_softmax(self.model(x), 1), y).backward()
            for n, p in self.model.named_parameters():
                out[n] += p.grad.detach() ** 2 / batches
        return out

    def consolidate(self, data):
        fisher = self.fisher(data)
        star = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        before = self.penalty

        def penalty(model):
            mine = sum((fisher[n] * (p - star[n]) ** 2).sum() for n, p in model.named_parameters())
            return before(model) + mine

        self.penalty = penalty  # LEAK


def permuted_task(seed):
    g = torch.Generator().manual_seed(seed)
    perm = torch.randperm(64, generator=g)

    def sample(bs=64):
        x = torch.randn(bs, 64)
        y = x[:, :10].argmax(1)
        return x[:, perm].to(device), y.to(device)
    return sample


learner = Learner()
for task in range(64):
    data = permuted_task(task)
    last = learner.train_task(data)
    learner.consolidate(data)
    if task % 16 == 0:
        print(f"task {task}: loss {last:.3f}")
