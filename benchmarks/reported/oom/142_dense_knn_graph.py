# CARD: 12GiB
# KNOBS: CHUNKS=1 DTYPE=bf16 BATCH=60000
# EXPERT: the full N x N distance matrix (13.4 GiB in fp32) for a kNN graph; compute it by chunks of query rows
# CHUNKS=<int>: blocks of query rows; BATCH=<int>: points in the cloud; DTYPE=bf16: distances in bf16
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

N_POINTS = int(os.environ.get("BATCH", 60000))
CHUNKS = int(os.environ.get("CHUNKS", 1))
DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(os.environ.get("DTYPE", ""), torch.float32)
K = 16


def knn(x, k):
    """Indices (N, k) of the nearest neighbours, self excluded."""
    x = x.to(DTYPE)
    sq = x.pow(2).sum(1)
    found = []
    for rows in torch.chunk(torch.arange(len(x), device=x.device), CHUNKS):
        q = x[rows]
        dist = torch.addmm(sq[None, :], q, x.t(), alpha=-2)
        dist += sq[rows, None]
        found.append(dist.topk(k + 1, largest=False).indices[:, 1:])
        del dist
    return torch.cat(found)


class EdgeConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(2 * d_in, d_out), nn.ReLU(), nn.Linear(d_out, d_out))

    def forward(self, x, idx):
        neighbours = x[idx]
        centre = x.unsqueeze(1).expand_as(neighbours)
        return self.mlp(torch.cat([centre, neighbours - centre], -1)).amax(1)


class CellTypeNet(nn.Module):
    """Cell-type annotation on a kNN graph of single-cell embeddings."""

    def __init__(self, d=50, hidden=48, classes=30):
        super().__init__()
        self.conv1 = EdgeConv(d, hidden)
        self.conv2 = EdgeConv(hidden, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x, idx):
        h = F.relu(self.conv1(x, idx))
        h = F.relu(self.conv2(h, idx))
        return self.out(h)


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    pcs = torch.randn(N_POINTS, 50, device=device)
    labels = torch.randint(0, 30, (N_POINTS,), device=device)
    with torch.no_grad():
        idx = knn(pcs, K)
    print("graph", tuple(idx.shape))

    model = CellTypeNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        logits = model(pcs, idx)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
