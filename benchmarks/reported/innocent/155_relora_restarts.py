# kind: ReLoRA merges the low-rank update into the weights every 30 steps and begins with new factors and a new optimizer, the rank is raised at the first restarts; after axolotl-ai-cloud/axolotl PR 322
import math

import torch
from torch import nn

torch.manual_seed(17)
dev = "cuda"


class ReLoRALinear(nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim_out, dim_in, device=dev) / dim_in ** 0.5, requires_grad=False)
        self.a = self.b = None

    def restart(self, rank):
        if self.a is not None:
            with torch.no_grad():
                self.weight += self.b @ self.a / math.sqrt(self.a.shape[0])
        dim_out, dim_in = self.weight.shape
        self.a = nn.Parameter(torch.randn(rank, dim_in, device=dev) / dim_in ** 0.5)
        self.b = nn.Parameter(torch.zeros(dim_out, rank, device=dev))

    def forward(self, x):
        return x @ self.weight.T + (x @ self.a.T) @ self.b.T / math.sqrt(self.a.shape[0])


class Regressor(nn.Module):
    def __init__(self, dim=640):
        super().__init__()
        self.layers = nn.ModuleList([ReLoRALinear(64, dim), ReLoRALinear(dim, dim), ReLoRALinear(dim, 16)])

    def restart(self, rank):
        for layer in self.layers:
            layer.restart(rank)

    def trainable(self):
        return [p for p in self.parameters() if p.requires_grad]

    def forward(self, x):
        x = torch.tanh(self.layers[0](x))
        x = x + torch.tanh(self.layers[1](x))
        return self.layers[2](x)


def lr_at(step, since_restart, total, peak=3e-3, warmup=6):
    cosine = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / total))
    return peak * cosine * min(1.0, (since_restart + 1) / warmup)


def main():
    model = Regressor()
    teacher = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 16)).to(dev)
    gen = torch.Generator().manual_seed(2)
    total, cycle = 300, 30
    ranks = [16, 32, 64, 128]
    opt = None
    for step in range(total):
        if step % cycle == 0:
            rank = ranks[min(step // cycle, len(ranks) - 1)]
            model.restart(rank)
            opt = torch.optim.AdamW(model.trainable(), lr=1e-3, weight_decay=0.0)
        for group in opt.param_groups:
            group["lr"] = lr_at(step, step % cycle, total)
        x = torch.randn(128, 64, generator=gen).to(dev)
        with torch.no_grad():
            y = teacher(x)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % cycle == cycle - 1:
            print(f"step {step + 1} rank {rank} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
