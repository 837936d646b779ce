# CARD: 4GiB
# KNOBS: BATCH=<sequences>, CHECKPOINT=1, AUTOCAST=1, DTYPE=bf16, OPT=sgd
# EXPERT: the scan materialises B x L x D x N several times per layer: checkpoint each block (the real kernel recomputes too), or a smaller batch
# from: https://github.com/state-spaces/mamba/issues/118
from __future__ import annotations

import atexit
import os
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.checkpoint

env = os.environ.get
atexit.register(lambda: print("PEAK", torch.cuda.max_memory_allocated()))


@dataclass
class ModelArgs:
    d_model: int = 512
    n_layer: int = 6
    vocab_size: int = 8192
    d_state: int = 16
    expand: int = 2
    dt_rank: int = 32
    d_conv: int = 4

    @property
    def d_inner(self):
        return self.d_model * self.expand


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class MambaBlock(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args = args
        self.in_proj = nn.Linear(args.d_model, args.d_inner * 2, bias=False)
        self.conv1d = nn.Conv1d(args.d_inner, args.d_inner, args.d_conv, groups=args.d_inner, padding=args.d_conv - 1)
        self.x_proj = nn.Linear(args.d_inner, args.dt_rank + args.d_state * 2, bias=False)
        self.dt_proj = nn.Linear(args.dt_rank, args.d_inner)
        A = torch.arange(1, args.d_state + 1).float().repeat(args.d_inner, 1)
        self.A_log = nn.Parameter(torch.log(A))
        self.D = nn.Parameter(torch.ones(args.d_inner))
        self.out_proj = nn.Linear(args.d_inner, args.d_model, bias=False)

    def forward(self, x):
        b, l, d = x.shape
        xin, res = self.in_proj(x).chunk(2, -1)
        xin = self.conv1d(xin.transpose(1, 2))[:, :, :l].transpose(1, 2)
        y = self.ssm(F.silu(xin))
        return self.out_proj(y * F.silu(res))

    def ssm(self, x):
        n = self.args.d_state
        A = -torch.exp(self.A_log.float())
        delta, B, C = self.x_proj(x).split([self.args.dt_rank, n, n], -1)
        delta = F.softplus(self.dt_proj(delta))
        return self.selective_scan(x, delta, A, B, C) + x * self.D

    def selective_scan(self, u, delta, A, B, C):
        b, l, d_in = u.shape
        deltaA = torch.exp(torch.einsum("bld,dn->bldn", delta, A.to(delta.dtype)))
        deltaB_u = torch.einsum("bld,bln,bld->bldn", delta, B, u)
        # sequential scan, see mamba-minimal
        x = torch.zeros((b, d_in, self.args.d_state), device=u.device, dtype=deltaA.dtype)
        ys = []
        for i in range(l):
            x = deltaA[:, i] * x + deltaB_u[:, i]
            ys.append(torch.einsum("bdn,bn->bd", x, C[:, i]))
        return torch.stack(ys, dim=1).to(u.dtype)


class ResidualBlock(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.mixer, self.norm = MambaBlock(args), RMSNorm(args.d_model)

    def forward(self, x):
        return self.mixer(self.norm(x)) + x


class Mamba(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embedding = nn.Embedding(args.vocab_size, args.d_model)
        self.layers = nn.ModuleList([ResidualBlock(args) for _ in range(args.n_layer)])
        self.norm_f = RMSNorm(args.d_model)
        self.lm_head = nn.Linear(args.d_model, args.vocab_size, bias=False)
        self.lm_head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            if env("CHECKPOINT") == "1":
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.lm_head(self.norm_f(x))


batch, seq = int(env("BATCH", "8")), 512
model = Mamba(ModelArgs()).to("cuda", torch.bfloat16 if env("DTYPE") == "bf16" else torch.float32)
if env("OPT") == "sgd":
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
else:
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(3):
    tokens = torch.randint(0, 8192, (batch, seq + 1), device="cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled=env("AUTOCAST") == "1"):
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
    print(f"{step}: {loss.item()}")
