# CARD: 40GiB
# KNOBS: BATCH=48 SIZE=456 EMA=1 AUTOCAST CHECKPOINT=InvertedResidual,DepthwiseSeparableConv CHECKPOINT_PATHS=blocks.*.* CHANNELS_LAST OPT FUSED
# EXPERT: expanded feature maps of the early inverted residual blocks at 228 and 114 pixels, each kept before and after BatchNorm and SiLU, for 48 images of 456x456; smaller batch with accumulation, smaller images, AMP, checkpoint the blocks; dropping the EMA copy or another optimizer is not enough (30 M parameters)
# Source: EfficientNets "have few parameters" and still run out of memory at their native resolution (lukemelas/EfficientNet-PyTorch issues on memory, huggingface/pytorch-image-models discussions); timm model, optimizer, mixup and EMA
import os

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.utils import ModelEmaV3

import knobs

BATCH = int(os.environ.get("BATCH", 48))
SIZE = int(os.environ.get("SIZE", 456))
CLASSES = 1000


def create_loader(steps):
    for _ in range(steps):
        yield torch.zeros(BATCH, 3, SIZE, SIZE), torch.zeros(BATCH, dtype=torch.long)


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, mixup_fn, model_ema, layout):
    model.train()
    for i, (input, target) in enumerate(loader):
        input, target = input.cuda(), target.cuda()
        input, target = mixup_fn(input, target)
        if layout:
            input = input.contiguous(memory_format=torch.channels_last)
        with knobs.autocast():
            output = model(input)
            loss = loss_fn(output.float(), target)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if model_ema is not None:
            model_ema.update(model, step=i)
        print(f"Train: {epoch} [{i}] Loss: {loss.item():.3f}")


def main():
    model = timm.create_model("tf_efficientnet_b5", pretrained=False, num_classes=CLASSES, drop_rate=0.4, drop_path_rate=0.2).cuda()
    layout = os.environ.get("CHANNELS_LAST", "0") == "1"
    if layout:
        model = model.to(memory_format=torch.channels_last)
    model_ema = ModelEmaV3(model, decay=0.9998) if os.environ.get("EMA", "1") == "1" else None
    knobs.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-5, nesterov=True)
    mixup_fn = Mixup(mixup_alpha=0.2, cutmix_alpha=0.0, label_smoothing=0.1, num_classes=CLASSES)
    train_one_epoch(0, model, create_loader(3), optimizer, SoftTargetCrossEntropy(), mixup_fn, model_ema, layout)
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
