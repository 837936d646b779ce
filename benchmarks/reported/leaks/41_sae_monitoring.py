# kind: training logs of a sparse autoencoder store codes themselves when monitoring is 2, as a strided view of the whole batch; from KempnerInstitute/overcomplete issue 5
import argparse
from collections import defaultdict

import torch
from torch import nn
import torch.nn.functional as F


class TopKSAE(nn.Module):
    def __init__(self, input_dim, nb_concepts, top_k=16):
        super().__init__()
        self.encoder = nn.Linear(input_dim, nb_concepts)
        self.dictionary = nn.Parameter(torch.randn(nb_concepts, input_dim) / input_dim ** 0.5)
        self.top_k = top_k

    def forward(self, x):
        pre = self.encoder(x)
        v, i = pre.topk(self.top_k, dim=-1)
        z = torch.zeros_like(pre).scatter(-1, i, F.relu(v))
        return z, z @ self.dictionary


def explained(x, x_hat):
    return 1 - (x - x_hat).square().sum().item() / (x - x.mean(0)).square().sum().item()


class History(defaultdict):
    def __init__(self, level):
        super().__init__(list)
        self.level = level

    def scalar(self, key, value):
        self[key].append(float(value))

    @torch.no_grad()
    def record(self, model, optimizer, x, x_hat, z, loss):
        if self.level < 1:
            return
        self.scalar("lr", optimizer.param_groups[0]["lr"])
        self.scalar("step_loss", loss)
        self.scalar("r2", explained(x, x_hat))
        if self.level < 2:
            return
        self["codes"].append(z.detach()[::10])  # LEAK
        self.scalar("l0", (z != 0).float().sum(1).mean())
        for name, p in model.named_parameters():
            self.scalar("norm/" + name, p.norm())
            if p.grad is not None:
                self.scalar("grad/" + name, p.grad.norm())


def train_sae(model, batches, criterion, optimizer, monitoring=1, device="cuda"):
    logs = History(monitoring)
    for step, x in enumerate(batches):
        x = x.to(device, non_blocking=True)
        optimizer.zero_grad()
        z, x_hat = model(x)
        loss = criterion(x, x_hat, z)
        loss.backward()
        optimizer.step()
        logs.record(model, optimizer, x, x_hat, z, loss)
        if step % 30 == 0:
            print(f"step {step:4d}  loss {logs['step_loss'][-1]:.4f}  r2 {logs['r2'][-1]:.3f}")
    return logs


def activations(n, batch, dim):
    basis = torch.randn(24, dim)
    for _ in range(n):
        yield torch.rand(batch, 24) @ basis


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--monitoring", type=int, default=2)
    ap.add_argument("--concepts", type=int, default=512)
    args = ap.parse_args()
    torch.manual_seed(0)
    sae = TopKSAE(96, args.concepts).cuda()
    opt = torch.optim.Adam(sae.parameters(), lr=5e-4)
    mse = lambda x, x_hat, z: (x - x_hat).square().mean()
    train_sae(sae, activations(150, 256, 96), mse, opt, monitoring=args.monitoring)
