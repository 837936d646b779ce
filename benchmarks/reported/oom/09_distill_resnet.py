# CARD: 8GiB
# KNOBS: BATCH=64 AUTOCAST NO_GRAD CHECKPOINT=Bottleneck,BasicBlock OPT FUSED
# EXPERT: the teacher (eval() only) is run with gradients, its whole graph is kept; torch.no_grad() around the teacher
import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torch.utils.data import DataLoader, TensorDataset

import knobs

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=int(os.environ.get("BATCH", 64)))
parser.add_argument("--temperature", type=float, default=4.0)
parser.add_argument("--alpha", type=float, default=0.9)
parser.add_argument("--beta", type=float, default=100.0, help="weight of the feature loss")
parser.add_argument("--lr", type=float, default=1e-3)


class FeatureNet(nn.Module):
    """Returns the logits and the last feature map of a torchvision resnet."""

    def __init__(self, name, num_classes=100):
        super().__init__()
        net = getattr(torchvision.models, name)(num_classes=num_classes)
        self.stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
        self.stages = nn.ModuleList([net.layer1, net.layer2, net.layer3, net.layer4])
        self.fc = net.fc

    def forward(self, x):
        x = self.stem(x)
        feats = []
        for s in self.stages:
            x = s(x)
            feats.append(x)
        return self.fc(x.mean((2, 3))), feats


class DistillLoss(nn.Module):
    def __init__(self, T, alpha, beta, s_channels, t_channels):
        super().__init__()
        self.T, self.alpha, self.beta = T, alpha, beta
        self.proj = nn.ModuleList([nn.Conv2d(s, t, 1) for s, t in zip(s_channels, t_channels)])

    def forward(self, student_out, teacher_out, labels):
        s_logits, s_feats = student_out
        t_logits, t_feats = teacher_out
        soft = F.kl_div(
            F.log_softmax(s_logits / self.T, dim=1),
            F.softmax(t_logits / self.T, dim=1),
            reduction="batchmean",
        ) * self.T ** 2
        hard = F.cross_entropy(s_logits, labels)
        hint = sum(F.mse_loss(p(s), t) for p, s, t in zip(self.proj, s_feats, t_feats))
        return self.alpha * soft + (1 - self.alpha) * hard + self.beta * hint


def train_student(student, teacher, loader, criterion, optimizer):
    student.train()
    teacher.eval()
    for i, (x, y) in enumerate(loader):
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        with knobs.autocast():
            teacher_out = teacher(x)
            student_out = student(x)
            loss = criterion(student_out, teacher_out, y)
        loss.backward()
        optimizer.step()
        acc = (student_out[0].argmax(1) == y).float().mean().item()
        print(f"iter {i}: loss {loss.item():.4f} acc {acc:.3f}")
        if i == 2:
            break


def main():
    args = parser.parse_args()
    teacher = FeatureNet("resnet152").cuda()
    student = FeatureNet("resnet18").cuda()
    # teacher.load_state_dict(torch.load("resnet152_best.pth"))
    knobs.apply(teacher)
    knobs.apply(student)
    knobs.no_grad(teacher)
    criterion = DistillLoss(args.temperature, args.alpha, args.beta,
                            (64, 128, 256, 512), (256, 512, 1024, 2048)).cuda()
    params = list(student.parameters()) + list(criterion.parameters())
    optimizer = torch.optim.Adam(params, lr=args.lr)

    data = TensorDataset(torch.rand(224, 3, 224, 224), torch.randint(0, 100, (224,)))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
    train_student(student, teacher, loader, criterion, optimizer)
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
