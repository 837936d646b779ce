# kind: https://github.com/pyg-team/pytorch_geometric/issues/1595: historical embeddings of clusters of a graph: the table fills in the first epoch and is overwritten later
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, SAGEConv

device = "cuda"
CLUSTERS, NODES, FEATURES, HIDDEN = 60, 400, 64, 96


class HistoryTable(dict):
    def pull(self, cluster):
        return self.get(cluster)

    def push(self, cluster, values):
        self[cluster] = values.detach()


class HistoricalGNN(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.conv1 = SAGEConv(FEATURES, HIDDEN)
        self.conv2 = GATConv(2 * HIDDEN, HIDDEN, heads=1)
        self.out = nn.Linear(HIDDEN, classes)
        self.history = [HistoryTable(), HistoryTable()]

    def forward(self, data, cluster, neighbour):
        h = F.relu(self.conv1(data.x, data.edge_index))
        far = self.history[0].pull(neighbour)
        context = far.mean(0, keepdim=True).expand_as(h) if far is not None else torch.zeros_like(h)
        self.history[0].push(cluster, h)
        h = F.elu(self.conv2(torch.cat([h, context], -1), data.edge_index))
        self.history[1].push(cluster, h)
        return self.out(h)


def make_cluster(seed):
    g = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(NODES, FEATURES, generator=g),
        edge_index=torch.randint(0, NODES, (2, NODES * 6), generator=g),
        y=torch.randint(0, 10, (NODES,), generator=g),
    )


def main():
    random.seed(1)
    parts = [make_cluster(i) for i in range(CLUSTERS)]
    model = HistoricalGNN().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    step = 0
    for epoch in range(3):
        order = random.sample(range(CLUSTERS), CLUSTERS)
        for cluster in order:
            data = parts[cluster].to(device, non_blocking=True)
            loss = F.cross_entropy(model(data, cluster, (cluster + 1) % CLUSTERS), data.y)
            parts[cluster] = data.cpu()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 15 == 0:
                print(f"epoch {epoch} step {step}: {loss.item():.4f} rows {len(model.history[0])} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
