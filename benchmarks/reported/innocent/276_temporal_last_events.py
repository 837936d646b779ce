# kind: temporal graph with the last events of each node remembered; why it is none: eight events a node, nodes are a fixed set and all have eight soon
from collections import defaultdict, deque

import torch
from torch import nn
from torch_geometric.nn import TransformerConv


class LastEvents:
    def __init__(self, k=8):
        self.by_node = defaultdict(lambda: deque(maxlen=k))

    def insert(self, src, dst, msg):
        for s, d, m in zip(src.tolist(), dst.tolist(), msg):
            m = m.clone()
            self.by_node[s].append((d, m))
            self.by_node[d].append((s, m))

    def neighbourhood(self, nodes):
        rows = [(n, o, m) for n in nodes for o, m in self.by_node[n]]
        if not rows:
            return None
        e = torch.tensor([[o, n] for n, o, _ in rows], device="cuda").T
        return e, torch.stack([m for *_, m in rows])


class TemporalGNN(nn.Module):
    def __init__(self, nodes=30, d=24, msg=128):
        super().__init__()
        self.emb = nn.Embedding(nodes, d)
        self.conv = TransformerConv(d, d, edge_dim=msg)
        self.score = nn.Bilinear(d, d, 1)

    def forward(self, nb, src, dst):
        h = self.emb.weight
        if nb is not None:
            h = h + self.conv(h, *nb)
        return self.score(h[src], h[dst]).squeeze(1)


torch.manual_seed(0)
net, store = TemporalGNN().cuda(), LastEvents()
opt = torch.optim.Adam(net.parameters(), 1e-3)
for step in range(130):
    src, dst = torch.randint(0, 15, (12,)), torch.randint(15, 30, (12,))
    wrong = torch.randint(15, 30, (12,))
    nb = store.neighbourhood(sorted(set(src.tolist()) | set(dst.tolist()) | set(wrong.tolist())))
    s, d, w = src.cuda(), dst.cuda(), wrong.cuda()
    loss = nn.functional.softplus(net(nb, s, w) - net(nb, s, d)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    store.insert(src, dst, torch.randn(12, 128, device="cuda"))
print(loss.item())
