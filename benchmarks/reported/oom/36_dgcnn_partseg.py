# CARD: 8GiB
# KNOBS: BATCH=32 POINTS=2048 K=40 AUTOCAST CHECKPOINT=EdgeConv CHECKPOINT_PATHS=ec1,ec2,ec3 OPT FUSED
# EXPERT: each EdgeConv makes (batch, 2*64, 2048, 40) neighbour features and keeps several such maps; smaller batch, k = 20 or 1024 points, checkpoint the EdgeConv blocks; the optimizer does not matter
# Source: DGCNN part segmentation with k=40 and batch 32 needing two GPUs (antao97/dgcnn.pytorch and WangYueFt/dgcnn issues on out of memory); written by hand
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

BATCH = int(os.environ.get("BATCH", 32))
POINTS = int(os.environ.get("POINTS", 2048))
K = int(os.environ.get("K", 40))


def knn(x, k):
    inner = -2 * torch.matmul(x.transpose(2, 1), x)
    xx = torch.sum(x ** 2, dim=1, keepdim=True)
    return (-xx - inner - xx.transpose(2, 1)).topk(k=k, dim=-1)[1]


def get_graph_feature(x, k):
    b, c, n = x.shape
    idx = knn(x, k)
    idx = (idx + torch.arange(b, device=x.device).view(-1, 1, 1) * n).view(-1)
    flat = x.transpose(2, 1).reshape(b * n, c)
    neigh = flat[idx].view(b, n, k, c)
    centre = flat.view(b, n, 1, c).expand(-1, -1, k, -1)
    return torch.cat((neigh - centre, centre), dim=3).permute(0, 3, 1, 2).contiguous()


def conv2(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2))


def conv1(i, o):
    return nn.Sequential(nn.Conv1d(i, o, 1, bias=False), nn.BatchNorm1d(o), nn.LeakyReLU(0.2))


class EdgeConv(nn.Module):
    def __init__(self, cin, cout, k, layers=2):
        super().__init__()
        self.k = k
        self.mlp = nn.Sequential(conv2(2 * cin, cout), *[conv2(cout, cout) for _ in range(layers - 1)])

    def forward(self, x):
        return self.mlp(get_graph_feature(x, self.k)).max(dim=-1)[0]


class DGCNNPartSeg(nn.Module):
    def __init__(self, parts=50, categories=16, emb=1024):
        super().__init__()
        self.ec1, self.ec2, self.ec3 = EdgeConv(3, 64, K), EdgeConv(64, 64, K), EdgeConv(64, 64, K, 1)
        self.conv6, self.conv7 = conv1(192, emb), conv1(categories, 64)
        self.head = nn.Sequential(conv1(emb + 64 + 192, 256), nn.Dropout(0.5), conv1(256, 256), nn.Dropout(0.5), conv1(256, 128), nn.Conv1d(128, parts, 1))

    def forward(self, x, label):
        x1 = self.ec1(x)
        x2 = self.ec2(x1)
        x3 = self.ec3(x2)
        local = torch.cat((x1, x2, x3), 1)
        glob = self.conv6(local).max(dim=-1, keepdim=True)[0]
        cat = self.conv7(label.unsqueeze(-1))
        g = torch.cat((glob, cat), 1).expand(-1, -1, x.shape[-1])
        return self.head(torch.cat((g, local), 1))


def smooth_loss(pred, gold, eps=0.2):
    n = pred.shape[1]
    one = torch.zeros_like(pred).scatter(1, gold.view(-1, 1), 1)
    one = one * (1 - eps) + (1 - one) * eps / (n - 1)
    return -(one * F.log_softmax(pred, dim=1)).sum(1).mean()


if __name__ == "__main__":
    model = knobs.apply(DGCNNPartSeg().cuda())
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 200, eta_min=1e-3)
    model.train()
    for i in range(3):
        pts, cat = torch.zeros(BATCH, POINTS, 3).cuda(), torch.zeros(BATCH, 16).cuda()
        seg = torch.zeros(BATCH, POINTS, dtype=torch.long).cuda()
        opt.zero_grad()
        with knobs.autocast():
            out = model(pts.transpose(2, 1), cat).permute(0, 2, 1).contiguous()
            loss = smooth_loss(out.view(-1, 50), seg.view(-1))
        loss.backward()
        opt.step()
        print("train", i, "loss %.4f" % loss.item())
    sched.step()
    print("PEAK", torch.cuda.max_memory_allocated())
