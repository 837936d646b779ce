# kind: https://github.com/pyg-team/pytorch_geometric/issues/1595: temporal graph: the message store keeps one row for each node, a view of the whole batch of messages
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import TransformerConv

device = "cuda"


class MessageStore:
    """Last message of each node, for the memory update when the node is seen again."""

    def __init__(self):
        self.last = {}

    def update(self, nodes, messages, time):
        for i, node in enumerate(nodes):
            self.last[node] = (time, messages[i])  # LEAK

    def collect(self, nodes, dim):
        rows = [self.last[n][1] if n in self.last else torch.zeros(dim, device=device) for n in nodes]
        return torch.stack(rows)


class TGN(nn.Module):
    def __init__(self, dim=64, edge_dim=172):
        super().__init__()
        self.msg = nn.Linear(2 * dim + edge_dim, 2 * dim)
        self.cell = nn.GRUCell(2 * dim, dim)
        self.conv = TransformerConv(dim, dim // 2, heads=2, edge_dim=edge_dim)
        self.link = nn.Bilinear(dim, dim, 1)

    def forward(self, memory_msgs, edge_index, edge_attr):
        memory = self.cell(memory_msgs, torch.zeros(memory_msgs.shape[0], self.cell.hidden_size, device=device))
        return self.conv(memory, edge_index, edge_attr)

    def messages(self, z, edge_index, edge_attr):
        src, dst = edge_index
        return self.msg(torch.cat([z[src], z[dst], edge_attr], -1))


def stream(batches, edges=1000, edge_dim=172):
    """New accounts appear all the time; only a few are seen more than once."""
    newest = 0
    for b in range(batches):
        fresh = list(range(newest, newest + 60))
        newest += 60
        old = [random.randrange(newest) for _ in range(20)]
        nodes = sorted(set(fresh + old))
        index = torch.randint(0, len(nodes), (2, edges), device=device)
        yield b, nodes, index, torch.randn(edges, edge_dim, device=device)


def main():
    random.seed(3)
    model, store = TGN().to(device), MessageStore()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for b, nodes, edge_index, edge_attr in stream(80):
        z = model(store.collect(nodes, 128), edge_index, edge_attr)
        neg = torch.randint(0, len(nodes), (edge_index.shape[1],), device=device)
        pos_score = model.link(z[edge_index[0]], z[edge_index[1]])
        neg_score = model.link(z[edge_index[0]], z[neg])
        loss = F.softplus(-pos_score).mean() + F.softplus(neg_score).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            messages = model.messages(z, edge_index, edge_attr)
        store.update(nodes, messages, b)
        if b % 10 == 0:
            print(f"batch {b}: loss {loss.item():.4f} nodes {len(store.last)} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
