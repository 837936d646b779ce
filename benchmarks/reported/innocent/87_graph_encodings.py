# kind: walk encodings of a graph are computed on the GPU when it is first drawn and stay on the Data object, the first epoch visits all of them; from pyg-team/pytorch_geometric issues 1595 / 2253 (memory grows while iterating over the loader)
import random

import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, global_mean_pool

WALKS = 48


def make_graph(i):
    g = torch.Generator().manual_seed(i)
    n = 80 + (i * 7) % 60
    src = torch.randint(0, n, (3 * n,), generator=g)
    dst = torch.randint(0, n, (3 * n,), generator=g)
    edges = torch.stack([torch.cat([src, dst]), torch.cat([dst, src])])
    return Data(x=torch.randn(n, 16, generator=g), edge_index=edges, y=torch.tensor([i % 3]))


class WalkEncoded:
    def __init__(self, graphs):
        self.graphs = graphs

    def __len__(self):
        return len(self.graphs)

    def encode(self, data):
        n = data.num_nodes
        adjacency = torch.zeros(n, n, device="cuda")
        adjacency.index_put_((data.edge_index[0], data.edge_index[1]), torch.ones(data.edge_index.shape[1], device="cuda"))
        step = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
        power, columns = step, []
        for _ in range(WALKS):
            columns.append(power)
            power = power @ step
        return torch.cat(columns, dim=1)[:, :WALKS * 64]

    def __getitem__(self, i):
        data = self.graphs[i]
        if "pe" not in data:
            data = data.to("cuda")
            data.pe = self.encode(data)
            self.graphs[i] = data
        return data


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.pe = nn.Linear(WALKS * 64, 32)
        self.c1, self.c2 = GCNConv(48, 64), GCNConv(64, 64)
        self.out = nn.Linear(64, 3)

    def forward(self, b):
        h = torch.cat([b.x, torch.relu(self.pe(b.pe))], dim=-1)
        h = torch.relu(self.c1(h, b.edge_index))
        h = torch.relu(self.c2(h, b.edge_index))
        return self.out(global_mean_pool(h, b.batch, size=b.num_graphs))


def main(epochs=5):
    torch.manual_seed(0)
    rng = random.Random(0)
    data = WalkEncoded([make_graph(i) for i in range(120)])
    net = Net().cuda()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(epochs):
        order = rng.sample(range(len(data)), len(data))
        for k in range(0, len(order), 4):
            batch = Batch.from_data_list([data[i] for i in order[k:k + 4]])
            loss = nn.functional.cross_entropy(net(batch), batch.y)
            opt.zero_grad()
            loss.backward()
            opt.step()


if __name__ == "__main__":
    main()
