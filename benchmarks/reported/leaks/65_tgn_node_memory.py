# kind: memories of a temporal graph network's nodes stay in a dict with the graph of all earlier messages while a stream of events is scored; from memgraph/mage PR 121 (detach_tensor_grads) and twitter-research/tgn questions
import random
from typing import Dict, List, NamedTuple

import torch
import torch.nn as nn


class Interaction(NamedTuple):
    src: int
    dst: int
    t: float
    feat: torch.Tensor


class TimeEncoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.lin = nn.Linear(1, dim)

    def forward(self, t):
        return torch.cos(self.lin(t[:, None]))


class NodeMemory:
    def __init__(self, dim, device):
        self.dim, self.device = dim, device
        self.container: Dict[int, torch.Tensor] = {}
        self.last_update: Dict[int, float] = {}

    def get(self, nodes: List[int]) -> torch.Tensor:
        rows = [self.container.get(n, torch.zeros(self.dim, device=self.device)) for n in nodes]
        return torch.stack(rows)

    def set(self, nodes: List[int], values: torch.Tensor, t: float):
        for n, v in zip(nodes, values):
            self.container[n] = v  # LEAK
            self.last_update[n] = t


class TGN(nn.Module):
    def __init__(self, dim=192, edge_dim=24, time_dim=16):
        super().__init__()
        self.time = TimeEncoder(time_dim)
        self.message = nn.Sequential(nn.Linear(2 * dim + edge_dim + time_dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.cell = nn.GRUCell(dim, dim)
        self.score = nn.Bilinear(dim, dim, 1)

    def forward(self, memory: NodeMemory, batch: List[Interaction]):
        src, dst = [e.src for e in batch], [e.dst for e in batch]
        m_src, m_dst = memory.get(src), memory.get(dst)
        prob = self.score(m_src, m_dst).sigmoid().squeeze(1)
        dt = torch.tensor([e.t - memory.last_update.get(e.src, 0.0) for e in batch], device=m_src.device)
        feats = torch.stack([e.feat for e in batch]).to(m_src.device)
        common = torch.cat([feats, self.time(dt)], 1)
        new_src = self.cell(self.message(torch.cat([m_src, m_dst, common], 1)), m_src)
        new_dst = self.cell(self.message(torch.cat([m_dst, m_src, common], 1)), m_dst)
        memory.set(src, new_src, batch[-1].t)
        memory.set(dst, new_dst, batch[-1].t)
        return prob


def stream(batches, size=64, nodes=150, seed=3):
    rng, t = random.Random(seed), 0.0
    for _ in range(batches):
        batch = []
        for _ in range(size):
            t += rng.expovariate(5.0)
            batch.append(Interaction(rng.randrange(nodes), rng.randrange(nodes), t, torch.randn(24)))
        yield batch


def replay(model, memory, events):
    model.eval()
    alarms = 0
    for i, batch in enumerate(events):
        prob = model(memory, batch)
        alarms += int((prob < 0.3).sum())
        if i % 20 == 0:
            print(f"t={batch[-1].t:8.2f} nodes={len(memory.container)} mean={prob.mean().item():.3f} alarms={alarms}")


if __name__ == "__main__":
    torch.manual_seed(0)
    dev = torch.device("cuda")
    replay(TGN().to(dev), NodeMemory(192, dev), stream(90))
