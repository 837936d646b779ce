# CARD: 12GiB
# KNOBS: NODES=5120 HEADS=8 BROADCAST AUTOCAST CHECKPOINT=GraphAttentionLayer OPT FUSED
# EXPERT: every head builds the concatenated features of all pairs of nodes, (nodes x nodes, 16), 1.6 GiB, and keeps it for the gradient of the attention vector, besides several nodes x nodes matrices; the graph is one batch, so there is no batch to make smaller; add the two halves of the scores by broadcasting (or a sparse GAT), checkpoint the attention layers, 4 heads instead of 8, a subgraph of 3072 nodes, or (just enough) bf16 autocast; 4096 nodes, 6 heads or another optimizer is not enough
# Source: diegoantognini/pyGAT 50 (10242 nodes, tried to allocate 6.25 GiB, 'I have not found any batch size'), 56 (all_combinations_matrix = torch.cat(...)), 2 (the attention of the master branch is memory eager); written by hand
import argparse
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.005)
parser.add_argument("--weight_decay", type=float, default=5e-4)
parser.add_argument("--hidden", type=int, default=8)
parser.add_argument("--nb_heads", type=int, default=int(os.environ.get("HEADS", 8)))
parser.add_argument("--dropout", type=float, default=0.6)
parser.add_argument("--alpha", type=float, default=0.2)
parser.add_argument("--nodes", type=int, default=int(os.environ.get("NODES", 5120)))
parser.add_argument("--features", type=int, default=1433)
parser.add_argument("--classes", type=int, default=7)
args = parser.parse_args()
BROADCAST = os.environ.get("BROADCAST", "0") == "1"


class GraphAttentionLayer(nn.Module):
    """dense graph attention: scores for all pairs of nodes, masked by the adjacency matrix"""

    def __init__(self, fan_in, fan_out, dropout, alpha, concat=True):
        super().__init__()
        self.fan_out, self.dropout, self.concat = fan_out, dropout, concat
        self.W = nn.Parameter(torch.empty(fan_in, fan_out))
        self.a = nn.Parameter(torch.empty(2 * fan_out, 1))
        nn.init.xavier_uniform_(self.W, gain=1.414)
        nn.init.xavier_uniform_(self.a, gain=1.414)
        self.leakyrelu = nn.LeakyReLU(alpha)

    def pairs(self, wh):
        n = wh.shape[0]
        left = wh.repeat_interleave(n, dim=0)
        right = wh.repeat(n, 1)
        return torch.cat([left, right], dim=1).view(n, n, 2 * self.fan_out)

    def forward(self, h, adj):
        wh = torch.mm(h, self.W)
        if BROADCAST:
            e = wh @ self.a[:self.fan_out] + (wh @ self.a[self.fan_out:]).T
        else:
            e = torch.matmul(self.pairs(wh), self.a).squeeze(2)
        e = self.leakyrelu(e)
        attention = torch.where(adj > 0, e, -9e15 * torch.ones_like(e))
        attention = F.dropout(F.softmax(attention, dim=1), self.dropout, training=self.training)
        out = torch.matmul(attention, wh)
        return F.elu(out) if self.concat else out


class GAT(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout, alpha, nheads):
        super().__init__()
        self.dropout = dropout
        self.attentions = nn.ModuleList(GraphAttentionLayer(nfeat, nhid, dropout, alpha) for _ in range(nheads))
        self.out_att = GraphAttentionLayer(nhid * nheads, nclass, dropout, alpha, concat=False)

    def forward(self, x, adj):
        x = F.dropout(x, self.dropout, training=self.training)
        x = torch.cat([att(x, adj) for att in self.attentions], dim=1)
        x = F.dropout(x, self.dropout, training=self.training)
        return F.log_softmax(F.elu(self.out_att(x, adj)), dim=1)


n = args.nodes
g = torch.Generator().manual_seed(72)
src, dst = torch.randint(0, n, (2, 4 * n), generator=g)
adj = torch.zeros(n, n)
adj[src, dst] = 1
adj[dst, src] = 1
adj.fill_diagonal_(1)
features = torch.rand(n, args.features, generator=g)
labels = torch.randint(0, args.classes, (n,), generator=g)
idx_train, idx_val = torch.arange(0, n // 2), torch.arange(n // 2, n)

model = GAT(args.features, args.hidden, args.classes, args.dropout, args.alpha, args.nb_heads)
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
model.cuda()
model = knobs.apply(model)
features, adj, labels = features.cuda(), adj.cuda(), labels.cuda()
idx_train, idx_val = idx_train.cuda(), idx_val.cuda()


def train(epoch):
    t = time.time()
    model.train()
    optimizer.zero_grad()
    with knobs.autocast():
        output = model(features, adj)
    loss = F.nll_loss(output[idx_train].float(), labels[idx_train])
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        output = model(features, adj)
        val = F.nll_loss(output[idx_val], labels[idx_val])
    print(f"epoch {epoch} train {loss.item():.4f} val {val.item():.4f} {time.time() - t:.1f}s")


for epoch in range(args.epochs):
    train(epoch)
