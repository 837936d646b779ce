# kind: GCNConv(cached=True) computes the normalised adjacency at the first pass over a snapshot and keeps it in the layer, there is a model for each of ten snapshots; after snap-stanford/ogb issue 157
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

torch.manual_seed(16)
dev = "cuda"
NODES, EDGES, FEATS = 600, 40000, 16


def snapshot(month):
    gen = torch.Generator().manual_seed(month)
    src = torch.randint(0, NODES, (EDGES + 800 * month,), generator=gen)
    dst = (src + torch.randint(1, 60, src.shape, generator=gen)) % NODES
    x = torch.randn(NODES, FEATS, generator=gen)
    y = (x[:, 0] + 0.3 * x[:, 1] > 0).long()
    return Data(x=x, edge_index=torch.stack([src, dst]), y=y).to(dev)


class SnapshotGCN(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.shared = shared
        self.conv1 = GCNConv(FEATS, 16, cached=True)
        self.conv2 = GCNConv(16, 2, cached=True)

    def forward(self, data):
        x = self.shared(data.x)
        x = F.relu(self.conv1(x, data.edge_index))
        return self.conv2(x, data.edge_index)


def main():
    months = [snapshot(m) for m in range(10)]
    shared = nn.Linear(FEATS, FEATS).to(dev)
    models = nn.ModuleList(SnapshotGCN(shared) for _ in months).to(dev)
    opt = torch.optim.Adam(models.parameters(), lr=0.01)
    order = torch.Generator().manual_seed(1)
    step = 0
    for epoch in range(14):
        right = total = 0
        # the newest months are released one after another during the first epochs
        available = min(4 + epoch, 10)
        for m in torch.randperm(available, generator=order).tolist():
            data = months[m]
            out = models[m](data)
            loss = F.cross_entropy(out, data.y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            right += (out.argmax(1) == data.y).sum().item()
            total += NODES
            step += 1
        if epoch % 3 == 2:
            print(f"epoch {epoch + 1} ({available} months, {step} steps): accuracy {right / total:.3f}")


if __name__ == "__main__":
    main()
