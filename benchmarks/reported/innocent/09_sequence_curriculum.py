# kind: longer and longer sequences for the first part of training, states kept for the whole sequence; from reports on curriculum / TBPTT
import torch
import torch.nn as nn


class Curriculum:
    def __init__(self, start=4, end=20, every=2):
        self.start, self.end, self.every = start, end, every

    def length(self, step):
        return min(self.end, self.start + step // self.every)


class CopyTask:
    def __init__(self, device, bs=160, symbols=8):
        self.device, self.bs, self.symbols = device, bs, symbols

    def batch(self, length):
        x = torch.randint(0, self.symbols, (self.bs, length))
        return x.to(self.device)


class Memory(nn.Module):
    def __init__(self, symbols=8, hidden=128):
        super().__init__()
        self.inp = nn.Embedding(symbols, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.read = nn.Linear(hidden, symbols)
        self.trace = []

    def forward(self, x):
        h = self.inp.weight.new_zeros(x.size(0), self.cell.hidden_size)
        self.trace = []
        for t in range(x.size(1)):
            h = self.cell(self.inp(x[:, t]), h)
            self.trace.append(h)
        return self.read(torch.stack(self.trace, dim=1))


def train(steps=105):
    device = torch.device("cuda")
    task, plan = CopyTask(device), Curriculum()
    model = Memory().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss_fn = nn.CrossEntropyLoss()
    for step in range(steps):
        n = plan.length(step)
        x = task.batch(n)
        # say the symbol of the step before
        logits = model(x)
        loss = loss_fn(logits[:, 1:].reshape(-1, 8), x[:, :-1].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(f"{step:4d} length {n:3d} loss {loss.item():.3f}")


train()
