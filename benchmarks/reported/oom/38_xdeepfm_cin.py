# CARD: 10GiB
# KNOBS: BATCH=4096 CIN_SIZE=200 DIM=16 SPARSE AUTOCAST CHECKPOINT=CIN,CINLayer CHECKPOINT_PATHS=cin.layers.* OPT FUSED
# EXPERT: each CIN layer forms the outer product (batch, 200*39, 16) of hidden maps and fields, 1.9 GiB in fp32 and kept for its 1x1 convolution, three of them; smaller batch or CIN size, checkpoint the CIN layers, bf16, or an optimizer without two moments for 15 M table rows; sparse embedding gradients alone are not enough
# Source: xDeepFM on Criteo running out of memory at batch 4096 where DeepFM fits (shenweichen/DeepCTR-Torch, rixwew/pytorch-fm issues; the compressed interaction network); written by hand
import os

import torch
import torch.nn as nn

import knobs

BATCH = int(os.environ.get("BATCH", 4096))
SIZE = int(os.environ.get("CIN_SIZE", 200))
DIM = int(os.environ.get("DIM", 16))
SPARSE = os.environ.get("SPARSE", "0") == "1"
DENSE, CATS = 13, 26
VOCAB = [1460, 583, 4_000_000, 2_000_000, 305, 24, 12517, 633, 3, 93145, 5683, 3_000_000, 3194, 27, 14992, 2_500_000, 10,
         5652, 2173, 4, 3_000_000, 18, 15, 286181, 105, 142572]


class FeaturesEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(v, dim, sparse=SPARSE, device="cuda") for v in VOCAB)
        self.dense = nn.Parameter(torch.randn(DENSE, dim) * 0.01)

    def forward(self, cats, dense):
        e = torch.stack([t(cats[:, i]) for i, t in enumerate(self.tables)], 1)
        return torch.cat([dense.unsqueeze(-1) * self.dense, e], 1)


class CINLayer(nn.Module):
    def __init__(self, fields, prev, size):
        super().__init__()
        self.conv = nn.Conv1d(fields * prev, size, 1)

    def forward(self, x0, h):
        b, m, d = x0.shape
        z = torch.einsum("bhd,bmd->bhmd", h, x0).reshape(b, -1, d)
        return torch.relu(self.conv(z))


class CIN(nn.Module):
    def __init__(self, fields, sizes):
        super().__init__()
        prev = [fields] + sizes[:-1]
        self.layers = nn.ModuleList(CINLayer(fields, p, s) for p, s in zip(prev, sizes))
        self.fc = nn.Linear(sum(sizes), 1)

    def forward(self, x0):
        h, pooled = x0, []
        for layer in self.layers:
            h = layer(x0, h)
            pooled.append(h.sum(-1))
        return self.fc(torch.cat(pooled, 1))


class XDeepFM(nn.Module):
    def __init__(self):
        super().__init__()
        n = DENSE + CATS
        self.embedding = FeaturesEmbedding(DIM)
        self.linear = FeaturesEmbedding(1)
        self.cin = CIN(n, [SIZE] * 3)
        widths = [n * DIM, 400, 400]
        layers = []
        for a, b in zip(widths, widths[1:]):
            layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(0.2)]
        self.mlp = nn.Sequential(*layers, nn.Linear(400, 1))

    def forward(self, cats, dense):
        e = self.embedding(cats, dense)
        return (self.linear(cats, dense).sum((1, 2)) + self.cin(e).squeeze(1) + self.mlp(e.flatten(1)).squeeze(1))


def optimizers(model):
    tables = [p for n, p in model.named_parameters() if ".tables." in n]
    rest = [p for n, p in model.named_parameters() if ".tables." not in n]
    if SPARSE:
        return [torch.optim.SparseAdam(tables, lr=1e-3), torch.optim.Adam(rest, lr=1e-3)]
    return [torch.optim.Adam(model.parameters(), lr=1e-3)]


def main():
    model = knobs.apply(XDeepFM().cuda())
    opts = optimizers(model)
    bce = nn.BCEWithLogitsLoss()
    for i in range(3):
        cats = torch.zeros(BATCH, CATS, dtype=torch.long).cuda()
        dense, click = torch.zeros(BATCH, DENSE).cuda(), torch.zeros(BATCH).cuda()
        with knobs.autocast():
            loss = bce(model(cats, dense), click)
        for o in opts:
            o.zero_grad()
        loss.backward()
        for o in opts:
            o.step()
        print("step", i, "logloss", round(loss.item(), 4))
    print("PEAK", torch.cuda.max_memory_allocated())


main()
