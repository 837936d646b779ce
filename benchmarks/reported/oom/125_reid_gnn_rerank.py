# CARD: 10.76GiB
# KNOBS: BATCH=128 IMAGES=36000 ROWS=0 HALF
# EXPERT: training and features are small; the re-ranking makes pictures x pictures matrices (36000 x 36000 floats, 4.8 GiB): adjacency, its sum with the transpose, propagated copy, gathered rows, four at once; half precision halves them (just enough), propagating rows in pieces (ROWS=2048) saves two of four (just not enough by itself), both together are; a smaller gallery; re-rank on the CPU; the batch size does not help
# after Xuanmeng-Zhang/gnn-re-ranking issue 2 (https://github.com/Xuanmeng-Zhang/gnn-re-ranking/issues/2), an RTX 2080 Ti with 10.76 GiB; there MSMT17 with 93820 pictures (32.79 GiB a matrix), here a smaller test set
import os

import timm
import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

BATCH = int(os.environ.get("BATCH", 128))
IMAGES = int(os.environ.get("IMAGES", 36000))
ROWS = int(os.environ.get("ROWS", 0))
HALF = os.environ.get("HALF") == "1"
QUERIES, IDS = 3600, 751
K1, K2, LAYERS = 26, 7, 2


class ReIDNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = timm.create_model("resnet18", num_classes=0)
        self.bnneck = nn.BatchNorm1d(512)
        self.classifier = nn.Linear(512, IDS, bias=False)

    def forward(self, x):
        f = self.bnneck(self.backbone(x))
        return self.classifier(f) if self.training else F.normalize(f)


def pictures(n, size=BATCH):
    for i in range(0, n, size):
        yield torch.rand(min(size, n - i), 3, 128, 64), torch.randint(0, IDS, (min(size, n - i),))


def train_epoch(net, optimizer):
    net.train()
    for x, y in pictures(2 * BATCH):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x.cuda()), y.cuda(), label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        print(f"train loss {loss.item():.3f}")


@torch.no_grad()
def extract(net):
    """A few forward passes stand for the whole set: the features themselves are 512 floats a picture."""
    net.eval()
    feats = [net(x.cuda()) for x, _ in pictures(4 * BATCH)]
    some = torch.cat(feats)
    feats = some.repeat(IMAGES // len(some) + 1, 1)[:IMAGES]
    return F.normalize(feats + 0.01 * torch.randn_like(feats))


def adjacency(rank, n):
    a = torch.zeros(n, n, device=rank.device, dtype=torch.float16 if HALF else torch.float32)
    return a.scatter_(1, rank, 1.0)


def propagate(a, score, index):
    """Each row becomes the weighted sum of the rows of its k2 nearest."""
    out = torch.zeros_like(a)
    for j in range(K2):
        w = score[:, j:j + 1].to(a.dtype).pow(2)
        if ROWS:
            for i in range(0, len(a), ROWS):
                out[i:i + ROWS] += w[i:i + ROWS] * a[index[i:i + ROWS, j]]
        else:
            out += w * a[index[:, j]]
    return out


def top_k(x, k):
    if not ROWS:
        return (x @ x.t()).topk(k, dim=-1, largest=True, sorted=True)
    parts = [(x[i:i + ROWS] @ x.t()).topk(k, dim=-1) for i in range(0, len(x), ROWS)]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


@torch.no_grad()
def gnn_reranking(query, gallery):
    x = torch.cat([query, gallery])
    score, rank = top_k(x, K1)
    a = adjacency(rank, len(x))
    a = a + a.t()
    for _ in range(LAYERS):
        a = propagate(a, score[:, :K2], rank[:, :K2])
        a /= torch.linalg.vector_norm(a, dim=1, keepdim=True, dtype=torch.float32).to(a.dtype)
    similarity = a[:len(query)] @ a[len(query):].t()
    return (-similarity).argsort(dim=-1)[:, :50]


def main():
    torch.manual_seed(0)
    net = knobs.apply(ReIDNet().cuda())
    train_epoch(net, torch.optim.Adam(net.parameters(), lr=3.5e-4))
    feats = extract(net)
    best = gnn_reranking(feats[:QUERIES], feats[QUERIES:]).cpu()
    print("re-ranked", tuple(best.shape))


if __name__ == "__main__":
    main()
