# kind: cross-batch memory joined with torch.cat whose size check looks at the wrong dimension, one tensor that gets longer and longer; from contrastive / metric learning code
import torch
import torch.nn as nn
import torch.nn.functional as F


class CrossBatchMemory(nn.Module):
    def __init__(self, dim, size):
        super().__init__()
        self.size = size
        self.register_buffer("feats", torch.empty(0, dim))
        self.register_buffer("labels", torch.empty(0, dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, f, y):
        self.feats = torch.cat([self.feats, f])  # LEAK
        self.labels = torch.cat([self.labels, y])
        if self.feats.shape[1] > self.size:
            self.feats = self.feats[-self.size:].clone()
            self.labels = self.labels[-self.size:].clone()

    def sample(self, n):
        pick = torch.randint(0, len(self.feats), (n,)).to(self.feats.device)
        return self.feats[pick], self.labels[pick]

    def __len__(self):
        return len(self.feats)


def contrastive(q, yq, k, yk, margin=0.5):
    sim = q @ k.T
    same = yq[:, None] == yk[None]
    pos = ((1 - sim) * same).sum() / same.sum().clamp(min=1)
    neg = (F.relu(sim - margin) * ~same).sum() / (~same).sum().clamp(min=1)
    return pos + neg


class Embedder(nn.Sequential):
    def __init__(self, d_in, dim):
        super().__init__(nn.Linear(d_in, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, dim))

    def forward(self, x):
        return F.normalize(super().forward(x), dim=1)


dim, bs = 256, 640
model = Embedder(40, dim).cuda()
xbm = CrossBatchMemory(dim, size=8192).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
centers = torch.randn(100, 40)
for it in range(90):
    y = torch.randint(0, 100, (bs,))
    x = (centers[y] + 0.3 * torch.randn(bs, 40)).cuda()
    y = y.cuda()
    z = model(x)
    loss = contrastive(z, y, z.detach(), y)
    if len(xbm) > 2048:
        loss = loss + contrastive(z, y, *xbm.sample(2048))
    opt.zero_grad()
    loss.backward()
    opt.step()
    xbm.enqueue(z.detach(), y)
    if it % 30 == 0:
        print(it, loss.item())
