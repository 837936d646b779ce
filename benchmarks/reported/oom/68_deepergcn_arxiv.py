# CARD: 32GiB
# KNOBS: LAYERS=7 HIDDEN=128 AGGR=softmax CHECKPOINT=GENConv,DeepGCNLayer AUTOCAST
# EXPERT: per layer about 7 GiB of messages and softmax tensors on 2.5 million edges; enough: CHECKPOINT=GENConv or DeepGCNLayer (then 28 layers fit too), AGGR=mean, AGGR=max, HIDDEN=64, LAYERS=3; not enough: AUTOCAST (gather, softmax and scatter on the edges stay fp32); one layer alone needs 12 GiB
# Source: lightaime/deep_gcns_torch 90 (ogbn-arxiv, full graph, softmax_sg aggregation: OOM even with one layer instead of 28); torch_geometric
import os

import torch
import torch.nn.functional as F
from torch.nn import LayerNorm, Linear, ReLU
from torch_geometric.data import Data
from torch_geometric.nn import DeepGCNLayer, GENConv
from torch_geometric.utils import add_self_loops

import knobs

LAYERS = int(os.environ.get("LAYERS", 7))
HIDDEN = int(os.environ.get("HIDDEN", 128))
AGGR = os.environ.get("AGGR", "softmax")
NODES, EDGES, CLASSES = 169343, 1166243, 40  # ogbn-arxiv


def load_arxiv():
    """Stands in for PygNodePropPredDataset('ogbn-arxiv')."""
    src = torch.randint(NODES, (2, EDGES))
    edge_index = torch.cat([src, src.flip(0)], dim=1)  # to_undirected
    edge_index, _ = add_self_loops(edge_index, num_nodes=NODES)
    order = torch.randperm(NODES)
    return Data(x=torch.randn(NODES, 128), edge_index=edge_index, y=torch.randint(CLASSES, (NODES,)),
                train_idx=order[:90941], valid_idx=order[90941:120740], num_nodes=NODES)


class DeeperGCN(torch.nn.Module):
    def __init__(self, in_channels, hidden, num_layers, classes):
        super().__init__()
        self.node_encoder = Linear(in_channels, hidden)
        self.layers = torch.nn.ModuleList()
        for _ in range(num_layers):
            kwargs = dict(t=0.1, learn_t=True) if AGGR == "softmax" else {}
            conv = GENConv(hidden, hidden, aggr=AGGR, num_layers=2, norm="layer", **kwargs)
            norm = LayerNorm(hidden, elementwise_affine=True)
            self.layers.append(DeepGCNLayer(conv, norm, ReLU(inplace=True), block="res+", dropout=0.5))
        self.lin = Linear(hidden, classes)

    def forward(self, x, edge_index):
        x = self.node_encoder(x)
        x = self.layers[0].conv(x, edge_index)
        for layer in self.layers[1:]:
            x = layer(x, edge_index)
        x = self.layers[0].act(self.layers[0].norm(x))
        x = F.dropout(x, p=0.5, training=self.training)
        return self.lin(x)


torch.manual_seed(0)
device = torch.device("cuda")
data = load_arxiv().to(device)
model = DeeperGCN(data.x.size(-1), HIDDEN, LAYERS, CLASSES).to(device)
knobs.apply(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train():
    model.train()
    optimizer.zero_grad()
    with knobs.autocast():
        out = model(data.x, data.edge_index)[data.train_idx]
        loss = F.cross_entropy(out, data.y[data.train_idx])
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def test():
    model.eval()
    with knobs.autocast():
        pred = model(data.x, data.edge_index).argmax(dim=-1)
    return [(pred[i] == data.y[i]).float().mean().item() for i in (data.train_idx, data.valid_idx)]


for epoch in range(1, 4):
    loss = train()
    train_acc, valid_acc = test()
    print(f"epoch {epoch:03d}: loss {loss:.4f}, train {train_acc:.4f}, valid {valid_acc:.4f}")
