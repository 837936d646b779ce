# kind: gradient episodic memory has a ring of examples and a gradient column for each task, both made when the task begins, there are six tasks and the last one is trained for longest; after facebookresearch/GradientEpisodicMemory
import torch
import torch.nn as nn
import torch.nn.functional as F

N_MEM = 160


class TaskMemory:
    def __init__(self, shape, n_params):
        self.x = torch.zeros(N_MEM, *shape, device="cuda")
        self.y = torch.zeros(N_MEM, dtype=torch.long, device="cuda")
        self.grad = torch.zeros(n_params, device="cuda")
        self.count = self.filled = 0

    def write(self, x, y):
        end = min(self.count + len(x), N_MEM)
        n = end - self.count
        self.x[self.count:end], self.y[self.count:end] = x[:n], y[:n]
        self.filled = max(self.filled, end)
        self.count = end % N_MEM

    def examples(self):
        return self.x[:self.filled], self.y[:self.filled]


def store_grad(params, column):
    at = 0
    for p in params:
        n = p.numel()
        column[at:at + n] = 0 if p.grad is None else p.grad.reshape(-1)
        at += n


def overwrite_grad(params, vector):
    at = 0
    for p in params:
        n = p.numel()
        p.grad.copy_(vector[at:at + n].view_as(p))
        at += n


def project(gradient, columns, rounds=12, margin=0.1):
    """Dual coordinate ascent in place of a QP solver."""
    gram = columns @ columns.t() + 1e-3 * torch.eye(len(columns), device=columns.device)
    lin = columns @ gradient
    v = torch.zeros(len(columns), device=columns.device)
    for _ in range(rounds):
        for k in range(len(columns)):
            v[k] = torch.clamp(v[k] - (gram[k] @ v + lin[k]) / gram[k, k], min=margin)
    return gradient + v @ columns


class GEM(nn.Module):
    def __init__(self, classes=12):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(14 * 14, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
                                 nn.Linear(128, classes)).cuda()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.params = list(self.net.parameters())
        self.n_params = sum(p.numel() for p in self.params)
        self.memories = {}

    def begin(self, task):
        self.memories[task] = TaskMemory((14, 14), self.n_params)

    def observe(self, task, x, y):
        mine = self.memories[task]
        mine.write(x, y)
        old = [m for t, m in self.memories.items() if t != task]
        for m in old:
            self.opt.zero_grad()
            mx, my = m.examples()
            F.cross_entropy(self.net(mx), my).backward()
            store_grad(self.params, m.grad)
        self.opt.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        if old:
            store_grad(self.params, mine.grad)
            columns = torch.stack([m.grad for m in old])
            if bool((columns @ mine.grad < 0).any()):
                overwrite_grad(self.params, project(mine.grad, columns))
        self.opt.step()
        return loss.item()


class PermutedDigits:
    def __init__(self, tasks):
        self.orders = [torch.randperm(196) for _ in range(tasks)]
        self.prototypes = torch.randn(12, 196)

    def batch(self, task, n=32):
        y = torch.randint(0, 12, (n,))
        x = self.prototypes[y] + 0.5 * torch.randn(n, 196)
        return x[:, self.orders[task]].view(n, 14, 14).cuda(), y.cuda()


def main():
    torch.manual_seed(0)
    lengths = [14, 14, 14, 14, 14, 80]
    data, model = PermutedDigits(len(lengths)), GEM()
    for task, n in enumerate(lengths):
        model.begin(task)
        for _ in range(n):
            loss = model.observe(task, *data.batch(task))
        print(f"task {task}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
