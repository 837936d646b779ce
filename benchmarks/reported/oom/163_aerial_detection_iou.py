# CARD: 8GiB
# KNOBS: BATCH=<images>, CHUNKS=<parts of the ground truth in the IoU>, CPU_IOU=1, CHECKPOINT=1, AUTOCAST=1
# EXPERT: the anchor x ground-truth IoU matrix (1500 boxes) is the spike: match in chunks of ground truth, or on the CPU
# from: https://github.com/facebookresearch/maskrcnn-benchmark/issues/18
import atexit
import math
import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torchvision.models import resnet50
from torchvision.ops import FeaturePyramidNetwork, FrozenBatchNorm2d, box_iou, sigmoid_focal_loss

atexit.register(lambda: print("PEAK", torch.cuda.max_memory_allocated()))


def flag(name):
    return os.environ.get(name, "0") == "1"


cfg = dict(
    batch=int(os.environ.get("BATCH", 2)),
    chunks=int(os.environ.get("CHUNKS", 1)),
    image=1024,
    gt_per_image=1500,  # aerial images: cars, ships
    classes=15,
    strides=(8, 16, 32, 64),
    anchors_per_cell=9,
)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        net = resnet50(weights=None, norm_layer=FrozenBatchNorm2d)
        self.stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
        self.stages = nn.ModuleList([net.layer1, net.layer2, net.layer3, net.layer4])
        self.fpn = FeaturePyramidNetwork([512, 1024, 2048], 256)
        self.p6 = nn.Conv2d(256, 256, 3, stride=2, padding=1)

    def forward(self, x):
        x = self.stem(x)
        feats = {}
        for i, stage in enumerate(self.stages):
            for block in stage:
                x = checkpoint(block, x, use_reentrant=False) if flag("CHECKPOINT") else block(x)
            if i > 0:
                feats[str(i)] = x
        out = list(self.fpn(feats).values())
        out.append(self.p6(out[-1]))
        return out


class Head(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        layers = []
        for _ in range(4):
            layers += [nn.Conv2d(256, 256, 3, padding=1), nn.ReLU()]
        self.tower = nn.Sequential(*layers)
        self.out = nn.Conv2d(256, outputs * cfg["anchors_per_cell"], 3, padding=1)
        self.n = outputs

    def forward(self, feats):
        res = []
        for f in feats:
            o = self.out(self.tower(f))
            res.append(o.permute(0, 2, 3, 1).reshape(o.shape[0], -1, self.n))
        return torch.cat(res, 1)


def make_anchors(device):
    boxes = []
    for s in cfg["strides"]:
        n = cfg["image"] // s
        ys, xs = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
        centre = torch.stack([xs, ys], -1).reshape(-1, 1, 2).float() * s
        sizes = torch.tensor([[s * 4 * z * math.sqrt(r), s * 4 * z / math.sqrt(r)]
                              for z in (1, 1.26, 1.59) for r in (0.5, 1, 2)])
        boxes.append(torch.cat([centre - sizes / 2, centre + sizes / 2], -1).reshape(-1, 4))
    return torch.cat(boxes).to(device)


@torch.no_grad()
def match(anchors, gt):
    """best ground truth of each anchor, as in RetinaNet"""
    dev = anchors.device
    if flag("CPU_IOU"):
        anchors, gt = anchors.cpu(), gt.cpu()
    best = torch.zeros(len(anchors), device=anchors.device)
    which = torch.zeros(len(anchors), dtype=torch.long, device=anchors.device)
    first = 0
    for part in gt.chunk(cfg["chunks"]):
        values, index = box_iou(part, anchors).max(0)
        which = torch.where(values > best, index + first, which)
        best = torch.maximum(values, best)
        first += len(part)
    return best.to(dev), which.to(dev)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.cls_head, self.box_head = Head(cfg["classes"]), Head(4)

    def forward(self, images, targets, anchors):
        with torch.autocast("cuda", torch.bfloat16, enabled=flag("AUTOCAST")):
            feats = self.backbone(images)
            cls, reg = self.cls_head(feats), self.box_head(feats)
        loss = images.new_zeros(())
        for i, t in enumerate(targets):
            iou, which = match(anchors, t["boxes"])
            positive = (iou > 0.5).float()
            label = t["labels"][which]
            onehot = nn.functional.one_hot(label, cfg["classes"]).float() * positive[:, None]
            loss = loss + sigmoid_focal_loss(cls[i].float(), onehot, reduction="sum") / 100
            delta = (t["boxes"][which] - anchors) / 16
            loss = loss + ((reg[i].float() - delta).abs().sum(1) * positive).sum() / 100
        return loss / len(targets)


device = "cuda"
model = Detector().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
anchors = make_anchors(device)
for it in range(3):
    images = torch.rand(cfg["batch"], 3, cfg["image"], cfg["image"], device=device)
    targets = []
    for _ in range(cfg["batch"]):
        xy = torch.rand(cfg["gt_per_image"], 2) * 900
        targets.append({"boxes": torch.cat([xy, xy + 40], 1).to(device),
                        "labels": torch.arange(cfg["gt_per_image"], device=device) % cfg["classes"]})
    optimizer.zero_grad()
    loss = model(images, targets, anchors)
    loss.backward()
    optimizer.step()
    print(it, loss.item())
