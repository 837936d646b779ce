# CARD: 11.77GiB
# KNOBS: EVAL_CHUNK=0 POINTS=2048 SHAPES=300 BATCH=32
# EXPERT: training fits; the evaluation hands all 300 shapes at once to the pure-PyTorch chamfer distance, which makes 300 x 2048 x 2048 floats (4.7 GiB) for x x^T, y y^T and x y^T each and more for their sum; evaluate the shapes one after another or in chunks, fewer points; the training batch does not matter
# after junzhezhang/shape-inversion issue 12 (https://github.com/junzhezhang/shape-inversion/issues/12), "Tried to allocate 4.69 GiB" of 11.77
import os
from dataclasses import dataclass

import torch
import torch.nn as nn

import knobs

POINTS = int(os.environ.get("POINTS", 2048))
SHAPES = int(os.environ.get("SHAPES", 300))
BATCH = int(os.environ.get("BATCH", 32))
EVAL_CHUNK = int(os.environ.get("EVAL_CHUNK", 0))


def distChamfer(a, b):
    """squared distances to the nearest point of the other cloud, both ways"""
    x, y = a, b
    xx = torch.bmm(x, x.transpose(2, 1))
    yy = torch.bmm(y, y.transpose(2, 1))
    zz = torch.bmm(x, y.transpose(2, 1))
    diag = torch.arange(0, x.size(1), device=x.device)
    rx = xx[:, diag, diag].unsqueeze(1).expand_as(xx)
    ry = yy[:, diag, diag].unsqueeze(1).expand_as(yy)
    P = rx.transpose(2, 1) + ry - 2 * zz
    d1, i1 = torch.min(P, 2)
    d2, i2 = torch.min(P, 1)
    return d1, d2, i1, i2


class PointEncoder(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.mlp = nn.Sequential(nn.Conv1d(3, 64, 1), nn.ReLU(), nn.Conv1d(64, 128, 1), nn.ReLU(),
                                 nn.Conv1d(128, dim, 1))

    def forward(self, pts):
        return self.mlp(pts.transpose(1, 2)).amax(2)


class TreeGenerator(nn.Module):
    def __init__(self, dim=256, points=POINTS):
        super().__init__()
        self.points = points
        self.grid = nn.Parameter(torch.randn(points, 2) * 0.1)
        self.fold = nn.Sequential(nn.Conv1d(dim + 2, 256, 1), nn.ReLU(), nn.Conv1d(256, 128, 1), nn.ReLU(),
                                  nn.Conv1d(128, 3, 1))

    def forward(self, z):
        grid = self.grid.t().unsqueeze(0).expand(z.size(0), -1, -1)
        h = torch.cat([z.unsqueeze(2).expand(-1, -1, self.points), grid], dim=1)
        return self.fold(h).transpose(1, 2).contiguous()


class Completion(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.generator = PointEncoder(), TreeGenerator()

    def forward(self, partial):
        return self.generator(self.encoder(partial))


@dataclass
class Trainer:
    model: Completion
    steps: int = 3

    def __post_init__(self):
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def fit(self):
        for it in range(self.steps):
            gt = torch.rand(BATCH, POINTS, 3).cuda()
            partial = gt[:, : POINTS // 2]
            d1, d2, _, _ = distChamfer(gt, self.model(partial))
            loss = d1.mean() + d2.mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            print(f"iter {it} cd {loss.item():.5f}")

    @torch.no_grad()
    def complete(self, n):
        outs, gts = [], []
        for k in range(0, n, BATCH):
            gt = torch.rand(min(BATCH, n - k), POINTS, 3).cuda()
            outs.append(self.model(gt[:, : POINTS // 2]))
            gts.append(gt)
        return torch.cat(gts), torch.cat(outs)


def fscore(d1, d2, th=0.0001):
    p, r = (d1 < th).float().mean(1), (d2 < th).float().mean(1)
    return 2 * p * r / (p + r + 1e-8)


@torch.no_grad()
def compute_4_metrics(gt, output):
    chunk = EVAL_CHUNK or len(gt)
    cd, acc, comp, f1 = [], [], [], []
    for k in range(0, len(gt), chunk):
        d1, d2, _, _ = distChamfer(gt[k:k + chunk], output[k:k + chunk])
        comp.append(d1.mean(1))
        acc.append(d2.mean(1))
        cd.append(d1.mean(1) + d2.mean(1))
        f1.append(fscore(d1, d2))
    return [torch.cat(v).mean().item() for v in (cd, acc, comp, f1)]


def main():
    model = Completion().cuda()
    knobs.apply(model)
    trainer = Trainer(model)
    trainer.fit()
    print("training peak MiB", torch.cuda.max_memory_allocated() // 2 ** 20)
    gt, output = trainer.complete(SHAPES)
    print("cd acc comp f1", compute_4_metrics(gt, output))
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
