# CARD: 8GiB
# KNOBS: BATCH=8 MAX_NODES=9000 AUTOCAST OPT FUSED
# EXPERT: dense_diff_pool needs the dense adjacency (to_dense_adj: batch x nodes x nodes) and its link loss makes s s^T and the difference of the same size, kept for backward; fewer graphs a batch, smaller graphs, a sparse pooling first (TopK/SAGPool); activations of the GNN are small
# after pyg-team/pytorch_geometric issue 7364 (https://github.com/pyg-team/pytorch_geometric/issues/7364)
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import DenseGraphConv, GATConv, dense_diff_pool
from torch_geometric.utils import to_dense_adj, to_dense_batch

import knobs

MAX_NODES = int(os.environ.get("MAX_NODES", 9000))
BATCH = int(os.environ.get("BATCH", 8))
FEATURES, CLASSES = 32, 5


def make_graph(n, k=8):
    src = torch.arange(n).repeat_interleave(k)
    dst = (src + torch.randint(1, n, (n * k,))) % n
    return Data(x=torch.randn(n, FEATURES), edge_index=torch.stack([src, dst]),
                y=torch.randint(0, CLASSES, (1,)), num_nodes=n)


class Loader:
    def __init__(self, n_graphs):
        self.graphs = [make_graph(MAX_NODES if i % BATCH == 0 else int(MAX_NODES * 0.6)) for i in range(n_graphs)]

    def __iter__(self):
        for i in range(0, len(self.graphs), BATCH):
            yield Batch.from_data_list(self.graphs[i:i + BATCH])


class DenseGNN(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv1, self.conv2 = DenseGraphConv(i, o), DenseGraphConv(o, o)

    def forward(self, x, adj, mask=None):
        x = F.relu(self.conv1(x, adj, mask))
        return F.relu(self.conv2(x, adj, mask))


class DiffPoolGAT(nn.Module):
    def __init__(self, hidden=64, ratio=0.05, n_steps=3):
        super().__init__()
        self.n_steps = n_steps
        n = MAX_NODES
        embed = [GATConv(FEATURES, hidden // 4, heads=4, add_self_loops=False)]
        pool = []
        for i in range(n_steps - 1):
            n = max(8, int(n * ratio))
            pool.append(GATConv(FEATURES, n, heads=1, add_self_loops=False) if i == 0 else DenseGNN(hidden, n))
            embed.append(DenseGNN(hidden, hidden))
        self.embed, self.pool = nn.ModuleList(embed), nn.ModuleList(pool)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x, edge_index, batch, batch_size):
        s = self.pool[0](x, edge_index)
        x = F.elu(self.embed[0](x, edge_index))
        x, mask = to_dense_batch(x, batch, max_num_nodes=MAX_NODES, batch_size=batch_size)
        s, _ = to_dense_batch(s, batch, max_num_nodes=MAX_NODES, batch_size=batch_size)
        # TODO: memory blowout
        adj = to_dense_adj(edge_index, batch, max_num_nodes=MAX_NODES, batch_size=batch_size)
        x, adj, link_loss, entropy_loss = dense_diff_pool(x, adj, s, mask)
        for i in range(1, self.n_steps - 1):
            x = self.embed[i](x, adj)
            s = self.pool[i](x, adj)
            x, adj, ll, el = dense_diff_pool(x, adj, s)
            link_loss = link_loss + ll
            entropy_loss = entropy_loss + el
        x = self.embed[-1](x, adj)
        return self.head(x.mean(dim=1)), link_loss, entropy_loss


def main():
    loader = Loader(BATCH * 2)
    model = DiffPoolGAT().cuda()
    knobs.apply(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1):
        model.train()
        for i, data in enumerate(loader):
            data = data.to("cuda")
            optimizer.zero_grad()
            with knobs.autocast():
                out, link, ent = model(data.x, data.edge_index, data.batch, data.num_graphs)
                loss = F.cross_entropy(out.float(), data.y) + link + ent
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} batch {i} loss {loss.item():.4f}")
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
