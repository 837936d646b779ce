# CARD: 12189MiB
# KNOBS: BATCH=2 MAX_INSTANCES AUTOCAST CHECKPOINT=Bottleneck OPT
# EXPERT: most patches need 3 to 5 GiB, one has 1239 vehicles: its masks (800x800 each) are resized and cast to float as a whole, and its boxes are compared with all anchors; limit the instances per picture (MAX_INSTANCES), crop, skip or move the IoU to the CPU; a smaller batch is not enough; (the peak is simulated without values: with values the run needs more host memory than there was; it lies in box_iou, whose sizes the boxes alone decide)
# after facebookresearch/detectron2 issue 433 (and CAPTAIN-WHU/iSAID_Devkit 27 for the 1239 masks); rebuilt with torchvision
import os

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor

import knobs

IMS_PER_BATCH = int(os.environ.get("BATCH", 2))
MAX_INSTANCES = int(os.environ.get("MAX_INSTANCES", 0))
NUM_CLASSES = 16  # iSAID: 15 and background


class ISAIDPatches(Dataset):
    """800 x 800 patches of iSAID in COCO format"""

    instances = [14, 62, 350, 1239]

    def __init__(self, size=800):
        self.size = size

    def __len__(self):
        return len(self.instances)

    def __getitem__(self, i):
        n = self.instances[i]
        g = torch.Generator().manual_seed(i)
        xy = torch.randint(0, self.size - 40, (n, 2), generator=g)
        wh = torch.randint(6, 36, (n, 2), generator=g)
        boxes = torch.cat([xy, xy + wh], dim=1)
        labels = torch.randint(1, NUM_CLASSES, (n,), generator=g)
        if MAX_INSTANCES and n > MAX_INSTANCES:
            keep = torch.randperm(n, generator=g)[:MAX_INSTANCES]
            boxes, labels, n = boxes[keep], labels[keep], MAX_INSTANCES
        masks = torch.zeros(n, self.size, self.size, dtype=torch.uint8)
        for m, (x0, y0, x1, y1) in zip(masks, boxes.tolist()):
            m[y0:y1, x0:x1] = 1
        image = torch.rand(3, self.size, self.size, generator=g)
        return image, {"boxes": boxes.float(), "labels": labels, "masks": masks}


def get_model_instance_segmentation(num_classes):
    model = torchvision.models.detection.maskrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, trainable_backbone_layers=3, min_size=800, max_size=800)
    in_features = model.roi_heads.box_predictor.cls_score.in_features
    model.roi_heads.box_predictor = FastRCNNPredictor(in_features, num_classes)
    in_features_mask = model.roi_heads.mask_predictor.conv5_mask.in_channels
    model.roi_heads.mask_predictor = MaskRCNNPredictor(in_features_mask, 256, num_classes)
    return model


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    loader = DataLoader(ISAIDPatches(), batch_size=IMS_PER_BATCH, shuffle=False,
                        collate_fn=lambda batch: tuple(zip(*batch)))
    model = get_model_instance_segmentation(NUM_CLASSES).to(device)
    knobs.apply(model)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.00025, momentum=0.9, weight_decay=1e-4)

    model.train()
    for it, (images, targets) in enumerate(loader):
        images = [image.to(device) for image in images]
        targets = [{k: v.to(device) for k, v in t.items()} for t in targets]
        with knobs.autocast():
            loss_dict = model(images, targets)
            losses = sum(loss_dict.values())
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        mem = torch.cuda.max_memory_allocated() / 2 ** 20
        print(f"iter: {it} total_loss: {losses.item():.3f} max_mem: {mem:.0f}M")


if __name__ == "__main__":
    main()
    print("PEAK", torch.cuda.max_memory_allocated())
