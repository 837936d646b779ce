# CARD: 7GiB
# KNOBS: SCALES=0.5,1.0,2.0 FLIP=together AUTOCAST OPT CHECKPOINT=Bottleneck
# EXPERT: training on two 512x1024 crops fits; the validation after the first epoch sends each full picture and its mirror image at scale 2.0 (2 x 2048x4096) through a network with output stride 8, whose last stage has 2048 channels at 256x512, 2 GiB a tensor and several at once; leave out scale 2.0, the mirror image by itself (FLIP=apart) or none (FLIP=none), half precision; checkpointing and the optimizer do not matter
# after NVIDIA/semantic-segmentation issue 171 (https://github.com/NVIDIA/semantic-segmentation/issues/171), rebuilt with torchvision's DeepLabV3
import os
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models.segmentation import deeplabv3_resnet50

import knobs

BATCH = 2
SCALES = [float(s) for s in os.environ.get("SCALES", "0.5,1.0,2.0").split(",")]
FLIP = os.environ.get("FLIP", "together")
CLASSES = 19


def resize(x, size):
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


class MultiscaleNet(nn.Module):
    """Segmentation network whose scales are averaged with weights at test time."""

    def __init__(self):
        super().__init__()
        self.trunk = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=CLASSES, aux_loss=False)
        self.scale_attn = nn.Conv2d(CLASSES, 1, 3, padding=1)

    def single(self, x):
        logits = self.trunk(x)["out"]
        return logits, torch.sigmoid(self.scale_attn(logits))

    def forward(self, x):
        return self.single(x)[0]

    def nscale_forward(self, x, scales):
        size = x.shape[-2:]
        total = weight = None
        for s in sorted(scales):
            logits, attn = self.single(resize(x, (int(size[0] * s), int(size[1] * s))))
            logits, attn = resize(logits, size), resize(attn, size)
            total = logits * attn if total is None else total * (1 - attn) + logits * attn
            weight = attn
        return total / weight.clamp(min=1.0)


@dataclass
class IOU:
    hist: torch.Tensor = field(default_factory=lambda: torch.zeros(CLASSES, CLASSES, device="cuda"))

    def update(self, pred, label):
        index = (label * CLASSES + pred).flatten()
        ones = torch.ones_like(index, dtype=torch.float)
        self.hist.view(-1).scatter_add_(0, index, ones)

    def mean(self):
        inter = self.hist.diagonal()
        union = self.hist.sum(0) + self.hist.sum(1) - inter
        return (inter / union.clamp(min=1)).mean().item()


class Cityscapes:
    def crop(self):
        return torch.rand(BATCH, 3, 512, 1024).cuda(), torch.randint(0, CLASSES, (BATCH, 512, 1024)).cuda()

    def picture(self):
        return torch.rand(1, 3, 1024, 2048).cuda(), torch.randint(0, CLASSES, (1, 1024, 2048)).cuda()


def train_epoch(net, opt, data, epoch, steps=2):
    net.train()
    for it in range(steps):
        x, y = data.crop()
        with knobs.autocast():
            loss = F.cross_entropy(net(x).float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"[epoch {epoch}], [iter {it}], [loss {loss.item():.4f}]")


@torch.no_grad()
def eval_minibatch(net, x):
    if FLIP == "none":
        return net.nscale_forward(x, SCALES)
    if FLIP == "apart":
        return net.nscale_forward(x, SCALES) + net.nscale_forward(x.flip(3), SCALES).flip(3)
    both = net.nscale_forward(torch.cat([x, x.flip(3)]), SCALES)
    return both[:1] + both[1:].flip(3)


def validate(net, data, pictures=2):
    net.eval()
    iou = IOU()
    for k in range(pictures):
        x, y = data.picture()
        with knobs.autocast():
            out = eval_minibatch(net, x)
        iou.update(out.argmax(1), y)
        print(f"validating {k}, mean IoU {iou.mean():.4f}")


def main():
    net, data = MultiscaleNet().cuda(), Cityscapes()
    knobs.apply(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    for epoch in range(2):
        train_epoch(net, opt, data, epoch)
        if epoch == 0:
            print("training peak MiB", torch.cuda.max_memory_allocated() // 2 ** 20)
        validate(net, data)
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
