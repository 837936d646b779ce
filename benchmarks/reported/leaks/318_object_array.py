# kind: https://github.com/Lightning-AI/torchmetrics/issues/2492: embeddings of each batch go into a numpy array of objects, still on the GPU
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"
BATCHES = 90


class PointNet(nn.Module):
    def __init__(self, dim=512):
        super().__init__()
        self.local = nn.Sequential(nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 128, 1), nn.BatchNorm1d(128), nn.ReLU())
        self.wide = nn.Conv1d(128, dim, 1)
        self.project = nn.Linear(dim, dim)

    def forward(self, points):
        h = self.wide(self.local(points))
        return F.normalize(self.project(h.max(-1).values), dim=-1)


def shapes(batch=128, points=256):
    for i in range(BATCHES):
        yield i, torch.randn(batch, 3, points, device=device), np.random.randint(0, 40, batch)


def rotate(points):
    angle = torch.rand(points.shape[0], device=device) * 6.28
    c, s = angle.cos(), angle.sin()
    zero, one = torch.zeros_like(c), torch.ones_like(c)
    m = torch.stack([c, -s, zero, s, c, zero, zero, zero, one], -1).view(-1, 3, 3)
    return m @ points


class RetrievalTable:
    """A table with one line for a batch: labels and embeddings."""

    def __init__(self, lines):
        self.columns = np.empty((lines, 2), dtype=object)
        self.filled = 0

    def add(self, labels, emb):
        self.columns[self.filled, 0] = labels
        self.columns[self.filled, 1] = emb  # LEAK
        self.filled += 1

    def recall(self, k=5):
        labels, emb = self.columns[self.filled - 1]
        near = (emb @ emb.t()).topk(k + 1).indices[:, 1:].cpu().numpy()
        return float((labels[near] == labels[:, None]).any(1).mean())


def main():
    torch.manual_seed(0)
    model = PointNet().to(device).eval()
    table = RetrievalTable(BATCHES)
    with torch.no_grad():
        for i, points, labels in shapes():
            emb = (model(points) + model(rotate(points))) / 2
            table.add(labels, emb)
            if i % 10 == 0:
                print(f"batch {i}: recall {table.recall():.3f} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
