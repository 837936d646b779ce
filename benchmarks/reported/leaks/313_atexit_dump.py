# kind: https://github.com/Lightning-AI/pytorch-lightning/issues/8453: predictions are to be written when the program ends, an exit handler for each batch
import atexit
import os
import tempfile

import torch
from torch import nn
from torchvision.models.segmentation import lraspp_mobilenet_v3_large

device = "cuda"
OUT = tempfile.mkdtemp(prefix="preds_")


def write(index, shape, mask):
    """Only every 50th mask is inspected by hand."""
    if index % 50 == 0:
        with open(os.path.join(OUT, f"{index:05d}.txt"), "w") as f:
            f.write(f"{tuple(shape)} {int(mask.sum())}\n")


class Evaluator:
    def __init__(self, model, classes):
        self.model = model.eval()
        self.confusion = torch.zeros(classes, classes, device=device, dtype=torch.long)
        self.classes = classes

    def update(self, pred, target):
        index = target.flatten() * self.classes + pred.flatten()
        ones = torch.ones_like(index)
        self.confusion.view(-1).scatter_add_(0, index, ones)

    @torch.no_grad()
    def run(self, loader):
        for i, (images, target) in enumerate(loader):
            logits = self.model(images)["out"]
            mask = logits.argmax(1)
            self.update(mask, target)
            atexit.register(write, i, images.shape, mask)  # LEAK
            if i % 10 == 0:
                print(f"batch {i}: {torch.cuda.memory_allocated() / 2**20:.2f} MiB")
        hit = self.confusion.diag().float()
        return (hit / (self.confusion.sum(0) + self.confusion.sum(1) - hit).clamp(min=1)).mean().item()


def loader(batches, classes):
    for _ in range(batches):
        images = torch.rand(2, 3, 160, 160, device=device)
        yield images, torch.randint(0, classes, (2, 160, 160), device=device)


def main():
    classes = 12
    model = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=classes)
    model.to(device)
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.kaiming_normal_(p)
    miou = Evaluator(model, classes).run(loader(80, classes))
    print(f"mIoU {miou:.4f}")


if __name__ == "__main__":
    main()
