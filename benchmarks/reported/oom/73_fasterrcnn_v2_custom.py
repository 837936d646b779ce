# CARD: 12GiB
# KNOBS: BATCH=8 AUTOCAST CHECKPOINT=Bottleneck CHECKPOINT_PATHS=backbone.body.layer1.*,backbone.body.layer2.*
# EXPERT: a two-stage detector at 800 px with 8 images a batch: backbone/FPN/box-head activations; batch of 4, AMP, smaller min_size
# after sovit-123/fasterrcnn-pytorch-training-pipeline issue 88
import os

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor

import knobs

BATCH_SIZE = int(os.environ.get("BATCH", 8))
IMAGE_SIZE = 640
NUM_CLASSES = 6
DEVICE = torch.device("cuda")


class CustomDataset(Dataset):
    def __init__(self, n=64):
        self.n = n
        self.image = torch.rand(3, IMAGE_SIZE, IMAGE_SIZE)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        k = 3 + i % 5
        xy = torch.rand(k, 2) * 400
        wh = 40 + torch.rand(k, 2) * 150
        target = {
            "boxes": torch.cat([xy, xy + wh], dim=1),
            "labels": torch.randint(1, NUM_CLASSES, (k,)),
            "image_id": torch.tensor([i]),
            "area": wh[:, 0] * wh[:, 1],
            "iscrowd": torch.zeros(k, dtype=torch.int64),
        }
        return self.image, target


def collate_fn(batch):
    return tuple(zip(*batch))


def create_model(num_classes):
    model = torchvision.models.detection.fasterrcnn_resnet50_fpn_v2(
        weights=None, weights_backbone=None)
    in_features = model.roi_heads.box_predictor.cls_score.in_features
    model.roi_heads.box_predictor = FastRCNNPredictor(in_features, num_classes)
    return model


def train_one_epoch(model, optimizer, loader):
    model.train()
    for step, (images, targets) in enumerate(loader):
        images = list(image.to(DEVICE) for image in images)
        targets = [{k: v.to(DEVICE) for k, v in t.items()} for t in targets]
        with knobs.autocast():
            loss_dict = model(images, targets)
            losses = sum(loss for loss in loss_dict.values())
        loss_value = losses.item()
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        print(f"step {step}: loss {loss_value:.4f}",
              {k: round(v.item(), 4) for k, v in loss_dict.items()})
        if step == 2:
            break


if __name__ == "__main__":
    train_loader = DataLoader(CustomDataset(), batch_size=BATCH_SIZE, shuffle=True,
                              collate_fn=collate_fn, num_workers=0)
    model = create_model(NUM_CLASSES).to(DEVICE)
    knobs.apply(model)
    print(f"{sum(p.numel() for p in model.parameters()):,} total parameters.")
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.001, momentum=0.9, nesterov=True)
    train_one_epoch(model, optimizer, train_loader)
    print("PEAK", torch.cuda.max_memory_allocated())
