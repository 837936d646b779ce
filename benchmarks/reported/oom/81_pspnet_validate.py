# CARD: 12GiB
# KNOBS: NO_GRAD BATCH=4 AUTOCAST CHECKPOINT=Bottleneck
# EXPERT: training fits; validate() runs without torch.no_grad(), so a graph is kept, and the last iteration's still lives when the next is made; torch.no_grad() around model(input)
# after hszhao/semseg issue 60
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torch.utils.data import DataLoader, Dataset

import knobs

args = dict(train_h=713, train_w=713, classes=19, batch_size=2, ignore_label=255,
            batch_size_val=int(os.environ.get("BATCH", 4)), base_lr=0.01, aux_weight=0.4)


class SemData(Dataset):
    def __init__(self, n):
        self.n = n
        self.image = torch.randn(3, args["train_h"], args["train_w"])
        self.label = torch.randint(0, args["classes"], (args["train_h"], args["train_w"]))

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.image, self.label


class PPM(nn.Module):
    def __init__(self, in_dim, reduction_dim, bins):
        super().__init__()
        self.features = nn.ModuleList([nn.Sequential(
            nn.AdaptiveAvgPool2d(b), nn.Conv2d(in_dim, reduction_dim, 1, bias=False),
            nn.BatchNorm2d(reduction_dim), nn.ReLU(inplace=True)) for b in bins])

    def forward(self, x):
        out = [x]
        for f in self.features:
            out.append(F.interpolate(f(x), x.shape[2:], mode="bilinear", align_corners=True))
        return torch.cat(out, 1)


class PSPNet(nn.Module):
    def __init__(self, classes, criterion, bins=(1, 2, 3, 6), dropout=0.1):
        super().__init__()
        resnet = torchvision.models.resnet50(replace_stride_with_dilation=[False, True, True])
        self.criterion = criterion
        self.layer0 = nn.Sequential(resnet.conv1, resnet.bn1, resnet.relu, resnet.maxpool)
        self.layer1, self.layer2 = resnet.layer1, resnet.layer2
        self.layer3, self.layer4 = resnet.layer3, resnet.layer4
        self.ppm = PPM(2048, 2048 // len(bins), bins)
        self.cls = nn.Sequential(nn.Conv2d(4096, 512, 3, padding=1, bias=False), nn.BatchNorm2d(512),
                                 nn.ReLU(inplace=True), nn.Dropout2d(dropout), nn.Conv2d(512, classes, 1))
        self.aux = nn.Sequential(nn.Conv2d(1024, 256, 3, padding=1, bias=False), nn.BatchNorm2d(256),
                                 nn.ReLU(inplace=True), nn.Dropout2d(dropout), nn.Conv2d(256, classes, 1))

    def forward(self, x, y=None):
        h, w = x.shape[2:]
        x = self.layer2(self.layer1(self.layer0(x)))
        x_tmp = self.layer3(x)
        x = self.layer4(x_tmp)
        x = self.cls(self.ppm(x))
        x = F.interpolate(x, size=(h, w), mode="bilinear", align_corners=True)
        if self.training:
            aux = F.interpolate(self.aux(x_tmp), size=(h, w), mode="bilinear", align_corners=True)
            return x.max(1)[1], self.criterion(x, y), self.criterion(aux, y)
        return x


def train(train_loader, model, optimizer, epoch):
    model.train()
    for i, (input, target) in enumerate(train_loader):
        input = input.cuda(non_blocking=True)
        target = target.cuda(non_blocking=True)
        with knobs.autocast():
            output, main_loss, aux_loss = model(input, target)
            loss = main_loss + args["aux_weight"] * aux_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        acc = (output == target).float().mean().item()
        print(f"Epoch: [{epoch}][{i + 1}/{len(train_loader)}] MainLoss {main_loss.item():.4f} Accuracy {acc:.4f}.")


def validate(val_loader, model, criterion):
    print(">>>>>>>>>>>>>>>> Start Evaluation >>>>>>>>>>>>>>>>")
    model.eval()
    total, count = 0.0, 0
    for i, (input, target) in enumerate(val_loader):
        input = input.cuda(non_blocking=True)
        target = target.cuda(non_blocking=True)
        with knobs.autocast():
            output = model(input)
            loss = criterion(output, target)
        total += loss.item() * input.size(0)
        count += input.size(0)
        output = output.max(1)[1]
        acc = (output == target).float().mean().item()
        print(f"Test: [{i + 1}/{len(val_loader)}] Loss {loss.item():.4f} Accuracy {acc:.4f}.")
    print(f"Val result: loss {total / count:.4f}.")


def main():
    criterion = nn.CrossEntropyLoss(ignore_index=args["ignore_label"])
    model = PSPNet(args["classes"], criterion).cuda()
    knobs.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args["base_lr"], momentum=0.9, weight_decay=1e-4)
    train_loader = DataLoader(SemData(4), batch_size=args["batch_size"], shuffle=True, drop_last=True)
    val_loader = DataLoader(SemData(8), batch_size=args["batch_size_val"], shuffle=False)
    for epoch in range(1):
        train(train_loader, model, optimizer, epoch + 1)
        knobs.no_grad(validate)(val_loader, model, criterion)
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
