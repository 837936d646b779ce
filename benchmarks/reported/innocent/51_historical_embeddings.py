# kind: historical embeddings of a graph's nodes, one table per partition and layer made when the partition is first visited; from GNNAutoScale-like code (pyg-team/pytorch_geometric questions)
import torch
import torch.nn as nn
import torch.nn.functional as F


class History(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = {}

    def pull(self, part, n, d):
        if part not in self.tables:
            self.tables[part] = torch.zeros(n, d, device="cuda")
        return self.tables[part]

    def push(self, part, h):
        self.tables[part] = h.detach().clone()


class SAGE(nn.Module):
    def __init__(self, din=32, hid=96, out=6):
        super().__init__()
        self.l1, self.l2 = nn.Linear(2 * din, hid), nn.Linear(2 * hid, out)
        self.history = History()

    def forward(self, x, adj, part, halo):
        h = F.relu(self.l1(torch.cat([x, adj @ x], 1)))
        outside = self.history.pull(halo, len(x), h.shape[1])
        self.history.push(part, h)
        return self.l2(torch.cat([h, 0.7 * (adj @ h) + 0.3 * (adj @ outside)], 1))


def partition(p, n=640):
    g = torch.Generator().manual_seed(p)
    x = torch.randn(n, 32, generator=g)
    a = (torch.rand(n, n, generator=g) < 0.02).float()
    return x, a / a.sum(1, keepdim=True).clamp_min(1), (x[:, :6].argmax(1))


def train(parts=28, epochs=6):
    torch.manual_seed(0)
    net = SAGE().cuda()
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    for epoch in range(epochs):
        total = 0.0
        for p in torch.randperm(parts).tolist():
            x, adj, y = (t.cuda() for t in partition(p))
            loss = F.cross_entropy(net(x, adj, p, (p + 1) % parts), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        print("epoch", epoch, "loss %.3f" % (total / parts), "tables", len(net.history.tables))


train()
