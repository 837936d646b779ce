# CARD: 44.35GiB
# KNOBS: BATCH=2 SCALE=1.0 DEPTH_BINS=80 CHANNELS=64 AUTOCAST CHECKPOINT=FrustumToVoxel,Bottleneck OPT FUSED
# EXPERT: the frustum features are an outer product of depth bins and image features, 2 x 64 x 80 x 302 x 480 floats, 5.5 GiB, and their gradient in backward as much again, beside the activations of a dilated ResNet-101 on 1208 x 1920; enough: BATCH=1, SCALE=0.75 or 0.5, AUTOCAST, CHECKPOINT=Bottleneck, CHANNELS=32, DEPTH_BINS=40; not enough: CHECKPOINT=FrustumToVoxel (its forward is made again just before its backward, where the peak is), OPT, FUSED
# after TRAILab/CaDDN issue 49 (https://github.com/TRAILab/CaDDN/issues/49: pictures of 1208 x 1920, "frustum_features = depth_probs * image_features ... Tried to allocate 5.53 GiB (GPU 0; 39.59 GiB total capacity)"; here an A40)
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models.segmentation import deeplabv3_resnet101

import knobs

BATCH = int(os.environ.get("BATCH", 2))
SCALE = float(os.environ.get("SCALE", 1.0))
DEPTH_BINS = int(os.environ.get("DEPTH_BINS", 80))
CHANNELS = int(os.environ.get("CHANNELS", 64))
HEIGHT, WIDTH = int(1208 * SCALE), int(1920 * SCALE)
GRID = (280, 376, 25)  # x, y, z voxels of 0.16 m
CLASSES, ANCHORS = 3, 6


class DDN(nn.Module):
    """Depth distribution network: DeepLabV3 with a class for each depth bin."""

    def __init__(self):
        super().__init__()
        net = deeplabv3_resnet101(weights=None, weights_backbone=None, num_classes=DEPTH_BINS + 1, aux_loss=False)
        self.backbone, self.classifier = net.backbone, net.classifier
        self.classifier[0].convs[-1][2] = nn.Identity()  # the pooled branch has one value for each picture
        self.backbone.return_layers = {"layer1": "features", "layer4": "out"}

    def forward(self, images):
        maps = self.backbone(images)
        logits = self.classifier(maps["out"])
        logits = F.interpolate(logits, size=maps["features"].shape[-2:], mode="bilinear", align_corners=False)
        return maps["features"], logits


class FrustumToVoxel(nn.Module):
    """Lifts image features along their depth distribution and samples the frustum at the voxels' centres."""

    def __init__(self):
        super().__init__()
        self.reduce = nn.Sequential(nn.Conv2d(256, CHANNELS, 1, bias=False), nn.BatchNorm2d(CHANNELS), nn.ReLU())
        x, y, z = (torch.linspace(-1, 1, n) for n in GRID)
        self.register_buffer("grid", torch.stack(torch.meshgrid(z, y, x, indexing="ij"), dim=-1))

    def forward(self, features, logits):
        image_features = self.reduce(features).unsqueeze(2)
        depth_probs = F.softmax(logits, dim=1)[:, :-1].unsqueeze(1)
        frustum_features = depth_probs * image_features
        grid = self.grid.expand(len(features), -1, -1, -1, -1).to(frustum_features.dtype)
        return F.grid_sample(frustum_features, grid, align_corners=False)


class BEVBackbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.collapse = nn.Sequential(nn.Conv2d(CHANNELS * GRID[2], 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.blocks, self.deblocks = nn.ModuleList(), nn.ModuleList()
        for k, (i, o, n) in enumerate([(64, 64, 10), (64, 128, 10), (128, 256, 10)]):
            layers = []
            for j in range(n):
                layers += [nn.Conv2d(i if j == 0 else o, o, 3, 2 if j == 0 else 1, 1, bias=False),
                           nn.BatchNorm2d(o), nn.ReLU()]
            self.blocks.append(nn.Sequential(*layers))
            self.deblocks.append(nn.Sequential(nn.ConvTranspose2d(o, 128, 2 ** k, 2 ** k, bias=False),
                                               nn.BatchNorm2d(128), nn.ReLU()))

    def forward(self, voxels):
        x, outs = self.collapse(voxels.flatten(1, 2)), []
        for block, deblock in zip(self.blocks, self.deblocks):
            x = block(x)
            outs.append(deblock(x))
        size = outs[0].shape[-2:]
        return torch.cat([o[..., :size[0], :size[1]] for o in outs], dim=1)


class CaDDN(nn.Module):
    def __init__(self):
        super().__init__()
        self.ddn, self.f2v, self.bev = DDN(), FrustumToVoxel(), BEVBackbone()
        self.cls_head, self.box_head = nn.Conv2d(384, ANCHORS * CLASSES, 1), nn.Conv2d(384, ANCHORS * 7, 1)

    def forward(self, images, depth_bins, cls_target, box_target):
        features, logits = self.ddn(images)
        bev = self.bev(self.f2v(features, logits))
        depth_loss = F.cross_entropy(logits.float(), depth_bins)
        cls_loss = F.binary_cross_entropy_with_logits(self.cls_head(bev).float(), cls_target)
        box_loss = F.smooth_l1_loss(self.box_head(bev).float(), box_target)
        return 3 * depth_loss + cls_loss + 2 * box_loss


def batch():
    h, w = -(-HEIGHT // 4), -(-WIDTH // 4)
    y, x = GRID[1] // 2, GRID[0] // 2
    return (torch.rand(BATCH, 3, HEIGHT, WIDTH), torch.randint(0, DEPTH_BINS + 1, (BATCH, h, w)),
            torch.zeros(BATCH, ANCHORS * CLASSES, y, x), torch.zeros(BATCH, ANCHORS * 7, y, x))


def main():
    torch.manual_seed(0)
    model = knobs.apply(CaDDN().cuda())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.01)
    model.train()
    for it in range(3):
        data = [t.cuda() for t in batch()]
        optimizer.zero_grad()
        with knobs.autocast():
            loss = model(*data)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10)
        optimizer.step()
        print(f"iter {it} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
