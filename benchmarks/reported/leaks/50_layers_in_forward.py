# kind: a projection is made inside of forward for each batch and registered on the module; from qubvel-org/segmentation_models.pytorch PR 224 and forum questions about layers created in forward
import torch
import torch.nn as nn
import torch.nn.functional as F


class Pyramid(nn.Module):
    def __init__(self, chans=(16, 32, 64), width=96):
        super().__init__()
        self.width = width
        self.stages = nn.ModuleList()
        c = 3
        for out in chans:
            self.stages.append(nn.Sequential(nn.Conv2d(c, out, 3, 2, 1), nn.BatchNorm2d(out), nn.ReLU()))
            c = out
        self.laterals = nn.ModuleList(nn.Conv2d(k, width, 1) for k in chans)
        self.extra = nn.ModuleList()

    def get_stages(self, x):
        feats = []
        for stage in self.stages:
            x = stage(x)
            feats.append(x)
        return feats

    def forward(self, x):
        feats = self.get_stages(x)
        top = None
        for f, lateral in zip(reversed(feats), reversed(list(self.laterals))):
            h = lateral(f)
            if top is not None:
                h = h + F.interpolate(top, size=h.shape[-2:])
            top = h
        smooth = nn.Conv2d(self.width, self.width, 3, padding=1).to(x.device)
        self.extra.append(smooth)  # LEAK
        return smooth(top)


class Segmenter(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.pyramid = Pyramid()
        self.cls = nn.Conv2d(self.pyramid.width, classes, 1)

    def forward(self, x):
        return F.interpolate(self.cls(self.pyramid(x)), size=x.shape[-2:], mode="bilinear", align_corners=False)


def fake_batch(n=2, s=32):
    x = torch.rand(n, 3, s, s)
    return x.cuda(), (x.mean(1) * 5).long().clamp(0, 4).cuda()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Segmenter().cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for it in range(140):
        x, y = fake_batch()
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 20 == 0:
            print("iter", it, "loss", f"{loss.item():.3f}")
