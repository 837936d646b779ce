# CARD: 12GiB
# KNOBS: AUTOCAST CHECKPOINT=GATConv DTYPE=bf16
# EXPERT: GAT materialises a message of 256 floats for each of the 2.5 M edges in every layer (full batch); neighbour sampling, smaller hidden size/heads, checkpoint the layers, half precision
# after iDC-NEU/NeutronTP issue 2
import torch
import torch.nn.functional as F
from torch_geometric.nn import GATConv
from torch_geometric.utils import add_self_loops, to_undirected

import knobs

NODES, EDGES, FEATURES, CLASSES = 169_343, 1_166_243, 128, 40


class GAT(torch.nn.Module):
    def __init__(self, in_channels, hidden, out_channels, heads=4, num_layers=3, dropout=0.5):
        super().__init__()
        self.convs = torch.nn.ModuleList()
        self.bns = torch.nn.ModuleList()
        self.convs.append(GATConv(in_channels, hidden // heads, heads=heads, add_self_loops=False))
        self.bns.append(torch.nn.BatchNorm1d(hidden))
        for _ in range(num_layers - 2):
            self.convs.append(GATConv(hidden, hidden // heads, heads=heads, add_self_loops=False))
            self.bns.append(torch.nn.BatchNorm1d(hidden))
        self.convs.append(GATConv(hidden, out_channels, heads=1, concat=False, add_self_loops=False))
        self.dropout = dropout

    def forward(self, x, edge_index):
        for i, conv in enumerate(self.convs[:-1]):
            x = conv(x, edge_index)
            x = self.bns[i](x)
            x = F.elu(x)
            x = F.dropout(x, p=self.dropout, training=self.training)
        x = self.convs[-1](x, edge_index)
        return x.log_softmax(dim=-1)


def train(model, x, edge_index, y, train_idx, optimizer):
    model.train()
    optimizer.zero_grad()
    with knobs.autocast():
        out = model(x, edge_index)[train_idx]
        loss = F.nll_loss(out, y[train_idx])
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def test(model, x, edge_index, y, split):
    model.eval()
    with knobs.autocast():
        out = model(x, edge_index)
    pred = out.argmax(dim=-1)
    return [(pred[idx] == y[idx]).float().mean().item() for idx in split]


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    edge_index = torch.stack([torch.arange(EDGES) % NODES, torch.randint(0, NODES, (EDGES,))])
    edge_index = to_undirected(edge_index, num_nodes=NODES)
    edge_index, _ = add_self_loops(edge_index, num_nodes=NODES)
    print("edges:", edge_index.size(1))
    edge_index = edge_index.to(device)
    x = torch.randn(NODES, FEATURES).to(device, knobs.dtype())
    y = torch.randint(0, CLASSES, (NODES,)).to(device)
    perm = torch.randperm(NODES)
    train_idx, valid_idx, test_idx = (p.to(device) for p in perm.split([90_941, 29_799, 48_603]))

    model = GAT(FEATURES, 256, CLASSES).to(device)
    knobs.apply(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    for epoch in range(1, 4):
        loss = train(model, x, edge_index, y, train_idx, optimizer)
        accs = test(model, x, edge_index, y, (train_idx, valid_idx, test_idx))
        print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}, " + ", ".join(f"{100 * a:.2f}%" for a in accs))
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
