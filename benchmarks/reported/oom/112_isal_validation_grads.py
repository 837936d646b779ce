# CARD: 12GiB
# KNOBS: CPU_OUTPUTS VAL_BATCH=25 VAL_IMAGES=10000 RUNNING_SUM
# EXPERT: the gradient of every validation batch (all 11 million weights, 43 MiB) is kept in a list on the GPU until their mean is taken: 400 of them; sum as you go or move them to the CPU, larger validation batches (fewer gradients) - smaller ones make it worse
# after dragonlzm/ISAL issue 2 (https://github.com/dragonlzm/ISAL/issues/2), CIFAR10 test_calc_val_grad.py on an RTX 3060
import os

import torch
import torch.nn as nn
import torchvision
from torch.autograd import grad
from torch.utils.data import DataLoader, TensorDataset

import knobs

BATCH = int(os.environ.get("VAL_BATCH", 25))
N_VAL = int(os.environ.get("VAL_IMAGES", 10000))
CPU_OUTPUTS = os.environ.get("CPU_OUTPUTS") == "1"
RUNNING_SUM = os.environ.get("RUNNING_SUM") == "1"


def get_model():
    model = torchvision.models.resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    model.maxpool = nn.Identity()
    return model


def calc_loss(model, criterion, x, t):
    return criterion(model(x), t)


def calc_val_grad(model, val_loader, params):
    """the mean gradient over the validation set"""
    criterion = nn.CrossEntropyLoss()
    model.eval()
    grad_list, running, n = [], None, 0
    for i, (x, t) in enumerate(val_loader):
        x, t = x.cuda(), t.cuda()
        loss = calc_loss(model, criterion, x, t)
        grad_result = grad(loss, params)
        if RUNNING_SUM:
            running = list(grad_result) if running is None else [a + b for a, b in zip(running, grad_result)]
        else:
            grad_list.append([g.cpu() for g in grad_result] if CPU_OUTPUTS else list(grad_result))
        n += 1
        if i % 50 == 0:
            print(f"val batch {i}/{len(val_loader)} allocated MiB {torch.cuda.memory_allocated() // 2 ** 20}")
    if RUNNING_SUM:
        return [g / n for g in running]
    mean = []
    for j in range(len(params)):
        total = torch.zeros_like(grad_list[0][j])
        for g in grad_list:
            total += g[j]
        mean.append(total / n)
    return mean


def s_test(val_grad, model, z, t, params, damp=0.01, scale=25.0, depth=3):
    """a few steps of the stochastic estimate of H^-1 v"""
    criterion = nn.CrossEntropyLoss()
    h = [v.clone() for v in val_grad]
    for _ in range(depth):
        loss = calc_loss(model, criterion, z, t)
        first = grad(loss, params, create_graph=True)
        hv = grad(sum((g * x).sum() for g, x in zip(first, h)), params)
        h = [v + (1 - damp) * x - y / scale for v, x, y in zip(val_grad, h, hv)]
    return [x.detach() for x in h]


def main():
    model = get_model().cuda()
    knobs.apply(model)
    params = [p for p in model.parameters() if p.requires_grad]
    images = torch.rand(256, 3, 32, 32)
    idx = torch.arange(N_VAL) % 256
    dataset = TensorDataset(idx, torch.randint(0, 10, (N_VAL,)))

    def collate(items):
        i = torch.stack([a for a, _ in items])
        return images[i], torch.stack([b for _, b in items])
    val_loader = DataLoader(dataset, batch_size=BATCH, shuffle=False, collate_fn=collate)
    val_grad = [g.cuda() for g in calc_val_grad(model, val_loader, params)]
    h = s_test(val_grad, model, images[:32].cuda(), torch.randint(0, 10, (32,)).cuda(), params)
    print("s_test", len(h), float(sum(x.norm() for x in h)))
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
