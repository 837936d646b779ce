# CARD: 7GiB
# KNOBS: BATCH=2 FOCAL_CHUNKS AUTOCAST CHECKPOINT=Bottleneck,Head CHECKPOINT_PATHS=body.layer1.*,body.layer2.* OPT FUSED
# EXPERT: 800x1088 inputs with 163k anchors x 365 classes per image: elementwise copies of the class logits in the focal loss (fused or chunked loss); smaller images/batch, AMP
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torchvision.models import resnet50
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

import knobs

NUM_CLASSES = 365  # Objects365
NUM_ANCHORS = 9
FOCAL_CHUNKS = int(os.environ.get("FOCAL_CHUNKS", 0))
IMAGES_PER_BATCH = int(os.environ.get("BATCH", 2))


class Head(nn.Module):
    """four 3x3 convolutions and a predictor, shared over the pyramid levels"""

    def __init__(self, channels, outputs):
        super().__init__()
        layers = []
        for _ in range(4):
            layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(32, channels), nn.ReLU()]
        self.tower = nn.Sequential(*layers)
        self.predict = nn.Conv2d(channels, NUM_ANCHORS * outputs, 3, padding=1)
        self.outputs = outputs

    def forward(self, features):
        out = []
        for f in features:
            y = self.predict(self.tower(f))
            n, _, h, w = y.shape
            y = y.view(n, NUM_ANCHORS, self.outputs, h, w).permute(0, 3, 4, 1, 2)
            out.append(y.reshape(n, -1, self.outputs))
        return torch.cat(out, dim=1)


class RetinaLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = IntermediateLayerGetter(
            resnet50(), return_layers={"layer2": "c3", "layer3": "c4", "layer4": "c5"})
        self.fpn = FeaturePyramidNetwork([512, 1024, 2048], 256, extra_blocks=LastLevelP6P7(2048, 256))
        self.cls_head = Head(256, NUM_CLASSES)
        self.box_head = Head(256, 4)
        self.ctr_head = Head(256, 1)

    def forward(self, images):
        pyramid = list(self.fpn(self.body(images)).values())
        return {
            "cls": self.cls_head(pyramid),
            "box": self.box_head(pyramid),
            "ctr": self.ctr_head(pyramid),
        }


def sigmoid_focal_loss(inputs, targets, alpha=0.25, gamma=2.0):
    p = torch.sigmoid(inputs)
    ce_loss = F.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    loss = ce_loss * ((1 - p_t) ** gamma)
    alpha_t = alpha * targets + (1 - alpha) * (1 - targets)
    return (alpha_t * loss).sum() / max(1, targets.shape[0])


def chunked_focal_loss(inputs, targets, n):
    """FOCAL_CHUNKS=n: n groups of anchors, each computed again in the backward pass"""
    return sum(checkpoint(sigmoid_focal_loss, i, t, use_reentrant=False)
               for i, t in zip(inputs.chunk(n, dim=1), targets.chunk(n, dim=1)))


def losses(out, gt_classes, gt_boxes):
    target = F.one_hot(gt_classes, NUM_CLASSES + 1)[..., :NUM_CLASSES].to(torch.float32)
    if FOCAL_CHUNKS:
        loss_cls = chunked_focal_loss(out["cls"].float(), target, FOCAL_CHUNKS)
    else:
        loss_cls = sigmoid_focal_loss(out["cls"].float(), target)
    return {
        "loss_cls": loss_cls,
        "loss_box": F.smooth_l1_loss(out["box"].float(), gt_boxes),
        "loss_ctr": F.binary_cross_entropy_with_logits(out["ctr"].float().squeeze(-1), (gt_classes > 0).float()),
    }


def train_one_epoch(model, optimizer, device, size=(800, 1088), iters=3):
    model.train()
    for it in range(iters):
        images = torch.rand(IMAGES_PER_BATCH, 3, *size).to(device)
        with knobs.autocast():
            out = model(images)
            anchors = out["cls"].shape[1]
            gt_classes = torch.randint(0, NUM_CLASSES + 1, (IMAGES_PER_BATCH, anchors), device=device)
            gt_boxes = torch.randn(IMAGES_PER_BATCH, anchors, 4, device=device)
            loss_dict = losses(out, gt_classes, gt_boxes)
            total = sum(loss_dict.values())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        print(f"[{it}]", "  ".join(f"{k}: {v.item():.4f}" for k, v in loss_dict.items()))


if __name__ == "__main__":
    device = torch.device("cuda")
    model = RetinaLike().to(device)
    knobs.apply(model)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.005, momentum=0.9, weight_decay=0.0005)
    train_one_epoch(model, optimizer, device)
    print("PEAK", torch.cuda.max_memory_allocated())
