# kind: the loader that caches batches on the device never marks the cache as filled, so each epoch's batches are added again; from pyg-team/pytorch_geometric PR 7896
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import SAGEConv, global_mean_pool


class CachedLoader:
    def __init__(self, loader, device):
        self.loader = loader
        self.device = device
        self.cache = []
        self.cache_filled = False

    def cache_batch(self, batch):
        self.cache.append(batch)  # LEAK

    def __iter__(self):
        if self.cache_filled:
            yield from self.cache
            return
        for batch in self.loader:
            batch = batch.to(self.device)
            self.cache_batch(batch)  # ALSO
            yield batch
            if len(self.cache) == len(self.loader):
                cache_filled = True  # ALSO


class GraphClassifier(nn.Module):
    def __init__(self, in_dim, hidden, classes):
        super().__init__()
        self.conv1 = SAGEConv(in_dim, hidden)
        self.conv2 = SAGEConv(hidden, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, data):
        h = F.relu(self.conv1(data.x, data.edge_index))
        h = F.relu(self.conv2(h, data.edge_index))
        return self.out(global_mean_pool(h, data.batch))


def random_graphs(n, nodes=60, degree=3, dim=32):
    graphs = []
    for i in range(n):
        label = i % 3
        x = torch.randn(nodes, dim) + 0.4 * label
        edge_index = torch.randint(0, nodes, (2, nodes * degree))
        graphs.append(Data(x=x, edge_index=edge_index, y=torch.tensor([label])))
    return graphs


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    train_loader = CachedLoader(DataLoader(random_graphs(96), batch_size=12), device)
    model = GraphClassifier(32, 32, 3).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(16):
        total = 0.0
        for data in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), data.y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        if epoch % 4 == 0:
            print(f"epoch {epoch} loss {total:.3f}")


if __name__ == "__main__":
    main()
