# CARD: 6GiB
# KNOBS: BATCH=128 AUTOCAST CHECKPOINT=Bottleneck CHECKPOINT_PATHS=layer1.*,layer2.* OPT DTYPE=bf16
# EXPERT: convolution/batch-norm activations scale with the batch size of 128; batch 64, or channels AMP
import os
import time

import torch
import torch.nn as nn
import torch.optim
import torchvision.models as models
from torch.utils.data import DataLoader, Dataset

import knobs


class AverageMeter(object):
    """Computes and stores the average and current value"""

    def __init__(self, name):
        self.name = name
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


class FakeImageNet(Dataset):
    def __init__(self, length):
        self.length = length
        self.img = torch.randn(3, 256, 256)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        top, left = i % 32, (i * 7) % 32
        return self.img[:, top:top + 224, left:left + 224], i % 1000


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        res = []
        for k in topk:
            correct_k = correct[:k].reshape(-1).float().sum(0, keepdim=True)
            res.append(correct_k.mul_(100.0 / target.size(0)))
        return res


def train(train_loader, model, criterion, optimizer, epoch, steps=3):
    batch_time = AverageMeter("Time")
    losses = AverageMeter("Loss")
    top1 = AverageMeter("Acc@1")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(train_loader):
        if i >= steps:
            break
        images = images.cuda(non_blocking=True)
        target = target.cuda(non_blocking=True)
        if os.environ.get("DTYPE") == "bf16":
            images = images.bfloat16()

        # compute output
        with knobs.autocast():
            output = model(images)
            loss = criterion(output, target)

        # measure accuracy and record loss
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), images.size(0))
        top1.update(acc1[0].item(), images.size(0))

        # compute gradient and do SGD step
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        batch_time.update(time.time() - end)
        end = time.time()
        print(f"Epoch: [{epoch}][{i}/{len(train_loader)}] Loss {losses.val:.4f} Acc@1 {top1.val:.2f}")


def main():
    batch_size = int(os.environ.get("BATCH", 128))
    print("=> creating model 'resnet50'")
    model = models.resnet50().cuda()
    knobs.apply(model)
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    train_loader = DataLoader(FakeImageNet(1024), batch_size=batch_size, shuffle=True,
                              num_workers=2, drop_last=True)
    for epoch in range(1):
        train(train_loader, model, criterion, optimizer, epoch)
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
