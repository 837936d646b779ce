# kind: memory vector of a graph's node is made when it first appears in the event stream and detached after each batch, there is a fixed set of nodes; from twitter-research/tgn and memgraph/mage PR 121 (repaired form)
import random
from typing import Dict

import torch
import torch.nn as nn


class Memory:
    def __init__(self, dim):
        self.dim = dim
        self.rows: Dict[int, torch.Tensor] = {}

    def read(self, nodes):
        for n in nodes:
            if n not in self.rows:
                self.rows[n] = torch.zeros(self.dim, device="cuda")
        return torch.stack([self.rows[n] for n in nodes])

    def write(self, nodes, values):
        for n, v in zip(nodes, values):
            self.rows[n] = v

    def detach_(self):
        self.rows = {n: v.detach().clone() for n, v in self.rows.items()}


class LinkModel(nn.Module):
    def __init__(self, dim=512, bottleneck=32):
        super().__init__()
        self.down = nn.Linear(2 * dim, bottleneck)
        self.gate = nn.Linear(bottleneck, dim)
        self.cand = nn.Linear(bottleneck, dim)
        self.score = nn.Linear(dim, 1)

    def update(self, me, other):
        h = self.down(torch.cat([me, other], 1)).relu()
        z = self.gate(h).sigmoid()
        return (1 - z) * me + z * self.cand(h).tanh()

    def logit(self, a, b):
        return self.score(a * b).squeeze(1)


def events(batches, size=24, final_nodes=900, seed=0):
    rng = random.Random(seed)
    for i in range(batches):
        known = min(final_nodes, 30 + 11 * i)
        pairs = [(rng.randrange(known), rng.randrange(known)) for _ in range(size - 4)]
        pairs += [(known - 1 - k, rng.randrange(known)) for k in range(4)]
        yield [p[0] for p in pairs], [p[1] for p in pairs], [rng.randrange(known) for _ in pairs]


torch.manual_seed(0)
model, memory = LinkModel().cuda(), Memory(512)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for i, (src, dst, neg) in enumerate(events(190)):
    m_src, m_dst, m_neg = memory.read(src), memory.read(dst), memory.read(neg)
    n_src, n_dst = model.update(m_src, m_dst), model.update(m_dst, m_src)
    pos, neg_score = model.logit(n_src, n_dst), model.logit(n_src, m_neg)
    loss = nn.functional.softplus(-pos).mean() + nn.functional.softplus(neg_score).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    memory.write(src, n_src)
    memory.write(dst, n_dst)
    memory.detach_()
    if i % 40 == 0:
        print(i, "loss %.3f" % loss.item(), "nodes", len(memory.rows))
