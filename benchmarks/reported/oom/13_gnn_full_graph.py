# CARD: 11GiB
# KNOBS: AUTOCAST CHECKPOINT=EdgeConvLayer,MessageNet CHECKPOINT_PATHS=layers.* OPT FUSED HIDDEN=128
# EXPERT: per-edge messages of the full graph (E x hidden, several per layer); neighbour sampling / subgraphs, sparse matmul instead of gather-scatter, checkpoint the layers
import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs


class MessageNet(nn.Module):
    """MLP on [x_i, x_j, e_ij]"""

    def __init__(self, hidden, edge_dim):
        super().__init__()
        self.lin1 = nn.Linear(2 * hidden + edge_dim, hidden)
        self.lin2 = nn.Linear(hidden, hidden)

    def forward(self, x_i, x_j, e):
        h = torch.cat([x_i, x_j, e], dim=-1)
        return self.lin2(F.silu(self.lin1(h)))


class EdgeConvLayer(nn.Module):
    def __init__(self, hidden, edge_dim):
        super().__init__()
        self.message = MessageNet(hidden, edge_dim)
        self.update = nn.GRUCell(hidden, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x, edge_index, edge_attr):
        src, dst = edge_index
        m = self.message(x[dst], x[src], edge_attr)
        agg = torch.zeros(x.size(0), m.size(1), device=x.device, dtype=m.dtype)
        agg = agg.index_add(0, dst, m)
        return self.norm(self.update(agg.to(x.dtype), x))


class MPNN(nn.Module):
    def __init__(self, in_dim, hidden, edge_dim, n_classes, n_layers):
        super().__init__()
        self.embed = nn.Linear(in_dim, hidden)
        self.layers = nn.ModuleList([EdgeConvLayer(hidden, edge_dim) for _ in range(n_layers)])
        self.out = nn.Linear(hidden, n_classes)

    def forward(self, x, edge_index, edge_attr):
        x = F.relu(self.embed(x))
        for layer in self.layers:
            x = layer(x, edge_index, edge_attr)
        return self.out(x)


def make_graph(num_nodes, num_edges, in_dim, edge_dim, n_classes):
    x = torch.randn(num_nodes, in_dim)
    edge_index = torch.randint(0, num_nodes, (2, num_edges))
    edge_attr = torch.rand(num_edges, edge_dim)
    y = torch.randint(0, n_classes, (num_nodes,))
    perm = torch.randperm(num_nodes)
    return x, edge_index, edge_attr, y, perm[: num_nodes // 2]


def main(args):
    torch.manual_seed(args.seed)
    device = torch.device("cuda")
    x, edge_index, edge_attr, y, train_idx = [
        t.to(device) for t in make_graph(args.nodes, args.edges, 100, 8, 47)]
    print(f"graph: {args.nodes} nodes, {args.edges} edges")

    model = MPNN(100, args.hidden, 8, 47, args.layers).to(device)
    knobs.apply(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=5e-4)

    for epoch in range(args.epochs):
        model.train()
        optimizer.zero_grad()
        with knobs.autocast():
            out = model(x, edge_index, edge_attr)
            loss = F.cross_entropy(out[train_idx], y[train_idx])
        loss.backward()
        optimizer.step()
        print(f"Epoch {epoch:03d}, Loss: {loss.item():.4f}")

    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=150_000)
    parser.add_argument("--edges", type=int, default=2_000_000)
    parser.add_argument("--hidden", type=int, default=int(os.environ.get("HIDDEN", 128)))
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
