# kind: custom autograd Function parks its intermediates in a class-level table that only its backward empties, scoring new data runs without backward and without no_grad; from dmlc/dgl PR 1060 and asappresearch/sru PR 171 (context kept outside of save_for_backward)
import itertools

import torch
import torch.nn as nn
from torch.autograd import Function


class ScatterSoftmax(Function):
    """softmax of edge scores over the edges that go into the same node"""

    _tickets = itertools.count()
    backward_cache = {}

    @staticmethod
    def forward(ctx, score, dst, n):
        top = score.new_full((n, score.shape[1]), -1e9).scatter_reduce(0, dst[:, None].expand_as(score), score, "amax")
        e = (score - top[dst]).exp()
        total = score.new_zeros(n, score.shape[1]).index_add(0, dst, e)
        out = e / total[dst].clamp_min(1e-9)
        ctx.ticket, ctx.n = next(ScatterSoftmax._tickets), n
        ScatterSoftmax.backward_cache[ctx.ticket] = (out.detach().clone(), dst)  # LEAK
        return out

    @staticmethod
    def backward(ctx, grad):
        out, dst = ScatterSoftmax.backward_cache.pop(ctx.ticket)
        gs = grad * out
        s = grad.new_zeros(ctx.n, grad.shape[1]).index_add(0, dst, gs)
        return gs - out * s[dst], None, None


class GATLayer(nn.Module):
    def __init__(self, din, dout, heads=4):
        super().__init__()
        self.h, self.d = heads, dout // heads
        self.fc = nn.Linear(din, dout)
        self.a = nn.Parameter(torch.randn(2, heads, self.d) * 0.1)

    def forward(self, x, src, dst):
        z = self.fc(x).view(-1, self.h, self.d)
        score = nn.functional.leaky_relu((z * self.a[0]).sum(-1)[src] + (z * self.a[1]).sum(-1)[dst], 0.2)
        w = ScatterSoftmax.apply(score, dst, len(x))
        return torch.zeros_like(z).index_add(0, dst, w.unsqueeze(-1) * z[src]).flatten(1)


class GAT(nn.Module):
    def __init__(self, din=16, hid=32, classes=4):
        super().__init__()
        self.l1, self.l2 = GATLayer(din, hid), GATLayer(hid, hid)
        self.out = nn.Linear(hid, classes)

    def forward(self, g):
        x, src, dst = g
        return self.out(torch.relu(self.l2(torch.relu(self.l1(x, src, dst)), src, dst)))


def graph(n=400, e=6000):
    return torch.randn(n, 16, device="cuda"), torch.randint(n, (e,), device="cuda"), torch.randint(n, (e,), device="cuda")


def train(net, steps):
    opt = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(steps):
        g = graph()
        y = (g[0][:, 0] > 0).long() + 2 * (g[0][:, 1] > 0).long()
        loss = nn.functional.cross_entropy(net(g), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def score_stream(net, graphs):
    net.eval()
    hist = torch.zeros(4, dtype=torch.long)
    for _ in range(graphs):
        hist += torch.bincount(net(graph()).argmax(1), minlength=4).cpu()
    return hist.tolist()


if __name__ == "__main__":
    torch.manual_seed(0)
    net = GAT().cuda()
    print("trained, loss", round(train(net, 15), 3))
    for hour in range(5):
        print("hour", hour, score_stream(net, 30))
