# kind: optimizer state comes with the second round of each of several rounds of pruning; after git-disl/recap issue 2
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class TinyViT(nn.Module):
    def __init__(self, dim=128, depth=3, heads=4, n_classes=100):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 8, 8)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.zeros(1, 17, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, dim * 4, batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList([copy.deepcopy(layer) for _ in range(depth)])
        self.head = nn.Linear(dim, n_classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.head(x[:, 0])


class Pruner:
    def __init__(self, model, init_sparsity, num_pi):
        self.model = model
        self.sparsity = init_sparsity
        self.num_pi = num_pi
        self.masks = {n: torch.ones_like(p) for n, p in model.named_parameters() if p.dim() > 1}

    @torch.no_grad()
    def prune(self):
        for n, p in self.model.named_parameters():
            if n in self.masks:
                k = max(1, int(p.numel() * self.sparsity))
                thresh = p.abs().flatten().kthvalue(k).values
                self.masks[n] = (p.abs() > thresh).float()
                p.mul_(self.masks[n])

    @torch.no_grad()
    def apply_masks(self):
        for n, p in self.model.named_parameters():
            if n in self.masks:
                p.mul_(self.masks[n])


def finetune(model, pruner, iters):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    total = 0.0
    for _ in range(iters):
        x = torch.randn(16, 3, 32, 32).cuda()
        y = torch.randint(0, 100, (16,)).cuda()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pruner.apply_masks()
        total += loss.item()
    return total / iters


def main():
    torch.manual_seed(0)
    model = TinyViT().cuda()
    pruner = Pruner(model, init_sparsity=0.33, num_pi=4)
    for pi in range(pruner.num_pi):
        pruner.prune()
        avg = finetune(model, pruner, iters=20)
        pruner.sparsity = min(0.9, pruner.sparsity + 0.15)
        print("pruning iteration", pi, "loss", avg)


if __name__ == "__main__":
    main()
