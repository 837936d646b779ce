# kind: sparse training, masks renewed at intervals with prune.custom_from_mask; in the manner of a forum post "memory grows slowly with torch.nn.utils.prune in the loop"
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import prune


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=240)
    p.add_argument("--mask-every", type=int, default=2)
    p.add_argument("--sparsity", type=float, default=0.6)
    return p.parse_args([])


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
                         nn.Linear(128, 10)).cuda()


def magnitude_mask(weight, sparsity):
    k = int(weight.numel() * sparsity)
    thresh = weight.detach().abs().flatten().kthvalue(k).values
    return (weight.detach().abs() > thresh).float()


def update_masks(model, sparsity):
    for m in model.modules():
        if isinstance(m, nn.Linear) and m.out_features != 10:
            dense = m.weight_orig if hasattr(m, "weight_orig") else m.weight
            mask = magnitude_mask(dense, sparsity)
            prune.custom_from_mask(m, "weight", mask)  # LEAK


def train(args):
    torch.manual_seed(1)
    model = build()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    running = 0.0
    for step in range(args.steps):
        if step % args.mask_every == 0:
            update_masks(model, args.sparsity)
            opt = torch.optim.SGD(model.parameters(), lr=0.05)
        x = torch.randn(64, 1, 28, 28, device="cuda")
        y = torch.randint(0, 10, (64,), device="cuda")
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item()
    print("mean loss", running / args.steps)


train(get_args())
