# CARD: 24GiB
# KNOBS: HIDDEN=256 ANCHORS=0 INTRAVIEW=1 LOSS=infonce CHUNK=0 AUTOCAST CHECKPOINT=InfoNCE,GCNConv OPT FUSED
# EXPERT: InfoNCE over all 17716 nodes of both views: similarity, its exponential, masks and log-probabilities are 17716 x 35432 floats each, 2.3 GiB, several kept for either view; the graph network itself is small, and there is no batch; enough: ANCHORS=8192 or 12000 (a sample of nodes), LOSS=barlow (no negatives), INTRAVIEW=0, CHUNK=2048 (rows in pieces: what they keep still adds up to 17 GiB), best with CHECKPOINT=InfoNCE (12 GiB); not enough: HIDDEN=64, CHECKPOINT=InfoNCE alone, AUTOCAST (exp and log are fp32), CHECKPOINT=GCNConv, OPT, FUSED
# after PyGCL/PyGCL issues 59 and 27 (https://github.com/PyGCL/PyGCL/issues/59: "no batch size option, I am unable to execute GRACE with DBLP and PubMed on 24 GB GPU"; https://github.com/CRIPAC-DIG/GRACE/issues/12: the batched loss keeps every batch's matrices until backward)
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import to_undirected

import knobs

HIDDEN = int(os.environ.get("HIDDEN", 256))
ANCHORS = int(os.environ.get("ANCHORS", 0))
CHUNK = int(os.environ.get("CHUNK", 0))
INTRAVIEW = os.environ.get("INTRAVIEW", "1") == "1"
LOSS = os.environ.get("LOSS", "infonce")  # or barlow
NODES, EDGES, FEATURES = 17716, 52867, 1639


def dblp():
    g = torch.Generator().manual_seed(0)
    edge_index = to_undirected(torch.randint(0, NODES, (2, EDGES), generator=g), num_nodes=NODES)
    return Data(x=torch.rand(NODES, FEATURES, generator=g), edge_index=edge_index, num_nodes=NODES)


class GConv(nn.Module):
    def __init__(self, i, o, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(GCNConv(i if k == 0 else o, o, cached=False) for k in range(layers))
        self.act = nn.PReLU(o)

    def forward(self, x, edge_index):
        for conv in self.layers:
            x = self.act(conv(x, edge_index))
        return x


class Augmentor:
    """Masks features and drops edges."""

    def __init__(self, pe=0.3, pf=0.3):
        self.pe, self.pf = pe, pf

    def __call__(self, x, edge_index):
        keep = torch.randperm(edge_index.shape[1])[:int(edge_index.shape[1] * (1 - self.pe))].to(x.device)
        mask = torch.empty(x.shape[1], device=x.device).bernoulli_(1 - self.pf)
        return x * mask, edge_index[:, keep]


class Encoder(nn.Module):
    def __init__(self, encoder, augmentors):
        super().__init__()
        self.encoder, self.augmentors = encoder, augmentors
        self.fc1, self.fc2 = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x, edge_index):
        z1, z2 = (self.encoder(*augment(x, edge_index)) for augment in self.augmentors)
        return self.encoder(x, edge_index), z1, z2

    def project(self, z):
        return self.fc2(F.elu(self.fc1(z)))


class InfoNCE(nn.Module):
    def __init__(self, tau=0.2):
        super().__init__()
        self.tau = tau

    def forward(self, anchor, sample, pos_mask, neg_mask):
        sim = F.normalize(anchor) @ F.normalize(sample).t() / self.tau
        exp_sim = torch.exp(sim) * (pos_mask + neg_mask)
        log_prob = sim - torch.log(exp_sim.sum(dim=1, keepdim=True))
        loss = log_prob * pos_mask
        loss = loss.sum(dim=1) / pos_mask.sum(dim=1)
        return -loss.mean()


class BarlowTwins(nn.Module):
    def forward(self, h1, h2):
        h1, h2 = ((h - h.mean(0)) / (h.std(0) + 1e-5) for h in (h1, h2))
        c = h1.t() @ h2 / len(h1)
        return (1 - c.diagonal()).square().sum() + c.fill_diagonal_(0).square().sum() / HIDDEN


class DualBranchContrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.infonce, self.barlow = InfoNCE(), BarlowTwins()

    def sample(self, rows, anchor, sample):
        """Positive is the same node in the other view; negatives are the others, of both views."""
        pos = torch.zeros(len(rows), len(sample), device=anchor.device).scatter_(1, rows[:, None], 1.0)
        neg = 1.0 - pos
        if INTRAVIEW:
            sample = torch.cat([sample, anchor])
            neg = torch.cat([neg, 1.0 - pos], dim=1)
            pos = torch.cat([pos, torch.zeros_like(pos)], dim=1)
        return sample, pos, neg

    def one_way(self, anchor, sample):
        rows = torch.arange(len(anchor), device=anchor.device)
        losses = []
        for part in rows.split(CHUNK or len(rows)):
            others, pos, neg = self.sample(part, anchor, sample)
            losses.append(self.infonce(anchor[part], others, pos, neg) * len(part))
        return torch.stack(losses).sum() / len(rows)

    def forward(self, h1, h2):
        if LOSS == "barlow":
            return self.barlow(h1, h2)
        if ANCHORS:
            chosen = torch.randperm(len(h1))[:ANCHORS].to(h1.device)
            h1, h2 = h1[chosen], h2[chosen]
        return (self.one_way(h1, h2) + self.one_way(h2, h1)) * 0.5


def train(encoder, contrast, data, optimizer):
    encoder.train()
    optimizer.zero_grad()
    with knobs.autocast():
        _, z1, z2 = encoder(data.x, data.edge_index)
        loss = contrast(encoder.project(z1), encoder.project(z2))
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def test(encoder, data):
    encoder.eval()
    z, _, _ = encoder(data.x, data.edge_index)
    return z.norm(dim=1).mean().item()


def main():
    torch.manual_seed(0)
    data = dblp().to("cuda")
    encoder = knobs.apply(Encoder(GConv(FEATURES, HIDDEN), [Augmentor(), Augmentor()]).cuda())
    contrast = knobs.apply(DualBranchContrast().cuda())
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-2)
    for epoch in range(3):
        print(f"(T) epoch {epoch} loss {train(encoder, contrast, data, optimizer):.4f}", flush=True)
    print("(E) mean norm", test(encoder, data))


if __name__ == "__main__":
    main()
