# CARD: 12GiB
# KNOBS: BATCH=4 AUTOCAST MAX_BOXES IOU_CHUNK
# EXPERT: the third batch has a tile with 1400 boxes, whose IoU with all 262143 anchors takes about 12 GiB in fp32 for a moment, on top of the 7 GiB which the batch of 4 has saved; enough: MAX_BOXES=200, IOU_CHUNK=64 together with BATCH=2 or with AUTOCAST; not enough: BATCH=1 (the matrix belongs to one image), AUTOCAST alone (boxes stay fp32), IOU_CHUNK=64 alone (the activations and the joined matrix remain)
# Source: tianzhi0549/FCOS 70 (retinanet on remote sensing images, batch 4 on 12 GB Titan X, OOM in boxlist_iou at `wh = (rb - lt).clamp(min=0)` [N,M,2], too many ground truth boxes); torchvision detection
import os

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import fasterrcnn_resnet50_fpn
from torchvision.ops import boxes as box_ops

import knobs

BATCH = int(os.environ.get("BATCH", 4))
MAX_BOXES = int(os.environ.get("MAX_BOXES", 0))
IOU_CHUNK = int(os.environ.get("IOU_CHUNK", 0))
TILE = 1024
NUM_CLASSES = 16  # DOTA: 15 + background

torch.manual_seed(0)


class AerialTiles(Dataset):
    """1024 x 1024 tiles; a few show a harbour or a car park with very many objects."""

    counts = [35, 12, 60, 8, 44, 90, 21, 17, 25, 1400, 31, 14, 50, 66, 9, 28]

    def __len__(self):
        return len(self.counts)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        n = self.counts[i]
        centers = torch.rand(n, 2, generator=g) * (TILE - 40) + 20
        sizes = torch.rand(n, 2, generator=g) * 24 + 8
        boxes = torch.cat([centers - sizes / 2, centers + sizes / 2], dim=1)
        labels = torch.randint(1, NUM_CLASSES, (n,), generator=g)
        image = torch.rand(3, TILE, TILE, generator=g)
        if MAX_BOXES:
            keep = torch.randperm(n, generator=g)[:MAX_BOXES]
            boxes, labels = boxes[keep], labels[keep]
        return image, {"boxes": boxes, "labels": labels}


def collate(batch):
    return tuple(zip(*batch))


def chunked_iou(gt, anchors):
    return torch.cat([box_ops.box_iou(part, anchors) for part in gt.split(IOU_CHUNK)])


def main():
    device = torch.device("cuda")
    model = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=NUM_CLASSES,
                                    trainable_backbone_layers=5, min_size=TILE, max_size=TILE)
    if IOU_CHUNK:
        model.rpn.box_similarity = chunked_iou
    model.to(device)
    knobs.apply(model)
    model.train()

    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.005, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.1)
    loader = DataLoader(AerialTiles(), batch_size=BATCH, shuffle=False, collate_fn=collate)

    for epoch in range(1):
        for step, (images, targets) in enumerate(loader):
            images = [image.to(device) for image in images]
            targets = [{k: v.to(device) for k, v in t.items()} for t in targets]
            with knobs.autocast():
                loss_dict = model(images, targets)
                losses = sum(loss_dict.values())
            optimizer.zero_grad()
            losses.backward()
            optimizer.step()
            print(f"step {step}: " + " ".join(f"{k} {v.item():.3f}" for k, v in loss_dict.items()))
        scheduler.step()


if __name__ == "__main__":
    main()
