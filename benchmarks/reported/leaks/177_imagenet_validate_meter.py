# kind: the meter's running sum is built from loss tensors that still carry the graph of every validation batch (no torch.no_grad, no .item()); after pytorch/pytorch issue 6925
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class AverageMeter(object):
    """Computes and stores the average and current value"""

    def __init__(self):
        self.reset()

    def reset(self):
        self.val = 0
        self.avg = 0
        self.sum = 0
        self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum = self.sum + val * n  # LEAK
        self.count += n
        self.avg = self.sum / self.count  # ALSO


class SmallNet(nn.Module):
    def __init__(self, num_classes=100):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32, num_classes)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(x, 2)
        x = F.relu(self.conv2(x))
        x = x.mean(dim=(2, 3))
        return self.fc(x)


class FakeImageNet:
    def __init__(self, batches, batch_size):
        self.batches = batches
        self.batch_size = batch_size

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            yield (torch.randn(self.batch_size, 3, 32, 32),
                   torch.randint(0, 100, (self.batch_size,)))


def train(train_loader, model, criterion, optimizer, epoch):
    batch_time = AverageMeter()
    model.train()
    end = time.time()
    for i, (input, target) in enumerate(train_loader):
        input = input.cuda()
        target = target.cuda()
        output = model(input)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()


def validate(val_loader, model, criterion):
    batch_time = AverageMeter()
    losses = AverageMeter()
    model.eval()
    end = time.time()
    for i, (input, target) in enumerate(val_loader):
        target = target.cuda(non_blocking=True)
        input = input.cuda(non_blocking=True)
        output = model(input)
        loss = criterion(output, target)
        losses.update(loss, input.size(0))  # ALSO
        batch_time.update(time.time() - end)
        end = time.time()
        if i % 50 == 0:
            print("Test: [{0}/{1}] Time {2:.3f}".format(i, len(val_loader), batch_time.avg))
    return losses.avg


def main():
    torch.manual_seed(0)
    model = SmallNet().cuda()
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    train_loader = FakeImageNet(5, 16)
    val_loader = FakeImageNet(120, 16)
    for epoch in range(1):
        train(train_loader, model, criterion, optimizer, epoch)
        validate(val_loader, model, criterion)


if __name__ == "__main__":
    main()
