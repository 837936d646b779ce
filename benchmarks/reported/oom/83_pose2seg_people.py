# CARD: 4GiB
# KNOBS: BATCH=4 MAXINST=8 AUTOCAST CHECKPOINT=Bottleneck,SegBottleneck OPT FUSED
# EXPERT: backbone with FPN at 512x512 for 4 pictures, then up to 8 people at 64x64x256 through ten residual units; batch of 1 or 2, fewer instances per step (MAXINST), AMP
# after liruilong940607/Pose2Seg issue 32
import os
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision.models import resnet50
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.ops import FeaturePyramidNetwork

import knobs


class SegBottleneck(nn.Module):
    expansion = 4

    def __init__(self, inplanes, planes, downsample=None):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 1)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, planes * 4, 1)
        self.bn3 = nn.BatchNorm2d(planes * 4)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x):
        residual = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += residual
        return self.relu(out)


class SegModule(nn.Module):
    """resnet10units"""

    def __init__(self, in_channels=256):
        super().__init__()
        self.inplanes = 256
        self.conv1 = nn.Conv2d(in_channels, 256, 7, stride=2, padding=3)
        self.bn1 = nn.BatchNorm2d(256)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = self._make_layer(256, 10)
        self.upsample = nn.UpsamplingBilinear2d(scale_factor=2)
        self.decoder1 = self._make_layer(128, 1)
        self.pred_small = nn.Conv2d(512, 2, 1)

    def _make_layer(self, planes, blocks):
        downsample = nn.Sequential(nn.Conv2d(self.inplanes, planes * 4, 1), nn.BatchNorm2d(planes * 4))
        layers = [SegBottleneck(self.inplanes, planes, downsample)]
        self.inplanes = planes * 4
        layers += [SegBottleneck(self.inplanes, planes) for _ in range(1, blocks)]
        return nn.Sequential(*layers)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.upsample(self.layer1(x))
        return self.pred_small(self.decoder1(x))


class Pose2Seg(nn.Module):
    def __init__(self):
        super().__init__()
        self.MAXINST = int(os.environ.get("MAXINST", 8))
        self.size_input, self.size_feat, self.size_align = 512, 128, 64
        body = resnet50(weights=None)
        self.body = IntermediateLayerGetter(body, {"layer1": "p1", "layer2": "p2", "layer3": "p3", "layer4": "p4"})
        self.fpn = FeaturePyramidNetwork([256, 512, 1024, 2048], 256)
        self.segnet = SegModule(256)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def sample(self, kpts, masks):
        ids = [(i, j) for i, k in enumerate(kpts) for j in range(len(k))]
        if self.training and len(ids) > self.MAXINST:
            ids = sorted(random.sample(ids, self.MAXINST))
        index = torch.tensor([i for i, _ in ids])
        boxes = torch.stack([torch.from_numpy(np.concatenate([kpts[i][j].min(0), kpts[i][j].max(0)])) for i, j in ids])
        gts = torch.stack([masks[i][j] for i, j in ids])
        return index, boxes, gts

    def forward(self, batchimgs, batchkpts, batchmasks):
        index, boxes, gts = self.sample(batchkpts, batchmasks)
        inputs = (torch.stack(batchimgs).cuda() / 255.0 - self.mean) / self.std
        feature = self.fpn(self.body(inputs))["p1"]

        # affine align: each person's pose box becomes 64 x 64
        lo, hi = boxes[:, :2] / self.size_input * 2 - 1, boxes[:, 2:] / self.size_input * 2 - 1
        theta = torch.zeros(len(index), 2, 3)
        theta[:, 0, 0], theta[:, 1, 1] = (hi - lo)[:, 0] / 2, (hi - lo)[:, 1] / 2
        theta[:, :, 2] = (hi + lo) / 2
        size = (len(index), 256, self.size_align, self.size_align)
        grid = F.affine_grid(theta, size, align_corners=False)
        rois = F.grid_sample(feature[index.cuda()], grid.cuda().to(feature.dtype), align_corners=False)
        out = self.segnet(rois)

        gts = F.grid_sample(gts[:, None].float(), grid, mode="nearest", align_corners=False)[:, 0]
        return F.cross_entropy(out.float(), gts.long().cuda(), ignore_index=255)


class PersonDataset:
    people = [2, 1, 6, 3, 1, 11, 4, 2, 14, 1, 5, 2, 7, 3, 1, 9]

    def __len__(self):
        return len(self.people)

    def __getitem__(self, i):
        img = torch.randint(0, 256, (3, 512, 512)).float()
        kpts, masks = [], []
        for _ in range(self.people[i]):
            x, y = np.random.randint(0, 350, 2)
            w, h = np.random.randint(40, 150, 2)
            kpts.append(np.float32([[x, y]] + (np.random.rand(15, 2) * [w, h] + [x, y]).tolist() + [[x + w, y + h]]))
            mask = torch.zeros(512, 512, dtype=torch.uint8)
            mask[y:y + h, x:x + w] = 1
            masks.append(mask)
        return {"img": img, "kpts": kpts, "masks": masks}

    @staticmethod
    def collate_fn(batch):
        return {"batchimgs": [d["img"] for d in batch], "batchkpts": [d["kpts"] for d in batch],
                "batchmasks": [d["masks"] for d in batch]}


def train(model, dataloader, optimizer, epoch):
    model.train()
    for i, inputs in enumerate(dataloader):
        with knobs.autocast():
            loss = model(**inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"Epoch: [{epoch}][{i}/{len(dataloader)}] loss {loss.item():.5f}")
        if i == 3:
            break


if __name__ == "__main__":
    random.seed(0)
    np.random.seed(0)
    model = Pose2Seg().cuda()
    knobs.apply(model)
    dataset = PersonDataset()
    loader = DataLoader(dataset, batch_size=int(os.environ.get("BATCH", 4)), shuffle=False,
                        collate_fn=dataset.collate_fn)
    optimizer = torch.optim.Adam(model.parameters(), 0.0002, weight_decay=0.0)
    train(model, loader, optimizer, 0)
    print("PEAK", torch.cuda.max_memory_allocated())
