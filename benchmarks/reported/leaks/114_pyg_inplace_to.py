# kind: Data.to() works in place, so each graph of the list stays on the GPU after its step; from pyg-team/pytorch_geometric issues 1595, 1021
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_mean_pool


def random_molecule(gen, classes=3, feat=64):
    n = int(torch.randint(180, 320, (1,), generator=gen))
    src = torch.arange(n).repeat_interleave(4)
    dst = torch.randint(0, n, (4 * n,), generator=gen)
    y = torch.randint(0, classes, (1,), generator=gen)
    x = torch.randn(n, feat, generator=gen) + 0.3 * y
    return Data(x=x, edge_index=torch.stack((src, dst)), y=y)


class GraphNet(nn.Module):
    def __init__(self, feat=64, hidden=48, classes=3):
        super().__init__()
        self.conv1 = GCNConv(feat, hidden)
        self.conv2 = GCNConv(hidden, hidden)
        self.lin = nn.Linear(hidden, classes)

    def forward(self, data):
        x = self.conv1(data.x, data.edge_index).relu()
        x = F.dropout(self.conv2(x, data.edge_index).relu(), 0.2, self.training)
        batch = torch.zeros(x.size(0), dtype=torch.long, device=x.device)
        return self.lin(global_mean_pool(x, batch))


def train_epoch(model, optimizer, dataset, device):
    model.train()
    order = list(range(len(dataset)))
    random.shuffle(order)
    correct, total_loss = 0, 0.0
    for i in order:
        data = dataset[i]
        data = data.to(device)  # LEAK
        optimizer.zero_grad()
        out = model(data)
        loss = F.cross_entropy(out, data.y)
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
        correct += int(out.argmax(1) == data.y)
    return total_loss / len(dataset), correct / len(dataset)


def main():
    random.seed(0)
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(2)
    dataset = [random_molecule(gen) for _ in range(260)]
    device = torch.device("cuda")
    model = GraphNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss, acc = train_epoch(model, optimizer, dataset, device)
    print(f"loss {loss:.4f} acc {acc:.3f}")


if __name__ == "__main__":
    main()
