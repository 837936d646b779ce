# kind: timgaripov/swa and snapshot ensembles: at the end of each cycle a copy of the model joins the ensemble (5 members at most)
import copy
import gc

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn


def make_net():
    return nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1),
                         nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 512),
                         nn.ReLU(), nn.Linear(512, 10)).cuda()


def batches(n):
    for _ in range(n):
        yield torch.randn(32, 3, 32, 32, device="cuda"), torch.randint(0, 10, (32,), device="cuda")


net = make_net()
swa = AveragedModel(net)
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
cycle = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=8)
ensemble = []
history = {"loss": [], "ensemble_acc": []}
for epoch in range(20):
    running = torch.zeros((), device="cuda")
    for x, y in batches(8):
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        cycle.step()
        running += loss.detach()
    history["loss"].append(running.item() / 8)
    ensemble.append(copy.deepcopy(net).eval())
    if len(ensemble) > 5:
        del ensemble[0]
    swa.update_parameters(net)
    with torch.no_grad():
        for x, y in batches(2):
            votes = torch.stack([member(x).softmax(-1) for member in ensemble]).mean(0)
            history["ensemble_acc"].append((votes.argmax(-1) == y).float().mean().item())
update_bn(batches(4), swa, device="cuda")
gc.collect()
print(len(ensemble), len(history["ensemble_acc"]), torch.cuda.memory_allocated() >> 20, "MiB")
