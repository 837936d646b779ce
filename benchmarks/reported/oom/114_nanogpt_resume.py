# CARD: 7.3GiB
# KNOBS: DEL_CKPT FUSED BATCH=1 BLOCK=256 CHECKPOINT=Block AUTOCAST
# EXPERT: resuming keeps the loaded checkpoint on the GPU for the whole run: its copy of the weights (1.3 GiB) lives beside the model's (the moments are shared with the optimizer); 355M weights, gradients and two moments are 5.3 GiB, the default AdamW step needs another 1.3 GiB of temporaries and dies there; set checkpoint = None (or load it to the CPU), a fused optimizer; batch, block size, checkpointing and autocast do not matter
# after karpathy/nanoGPT PR 236 and issue 158 (https://github.com/karpathy/nanoGPT/pull/236), an 8 GB card
import math
import os
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

BATCH = int(os.environ.get("BATCH", 1))
BLOCK = int(os.environ.get("BLOCK", 256))
DEL_CKPT = os.environ.get("DEL_CKPT") == "1"
device = "cuda"


@dataclass
class GPTConfig:
    block_size: int = 1024
    vocab_size: int = 50304
    n_layer: int = 24
    n_head: int = 16
    n_embd: int = 1024


class LayerNorm(nn.Module):
    def __init__(self, ndim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class CausalSelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n_head = c.n_head
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd, bias=False)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd, bias=False)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
                   for t in self.c_attn(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.ln_2 = LayerNorm(c.n_embd), LayerNorm(c.n_embd)
        self.attn = CausalSelfAttention(c)
        self.c_fc = nn.Linear(c.n_embd, 4 * c.n_embd, bias=False)
        self.c_proj = nn.Linear(4 * c.n_embd, c.n_embd, bias=False)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    def configure_optimizers(self, weight_decay=0.1, lr=6e-4):
        params = [p for p in self.parameters() if p.requires_grad]
        groups = [{"params": [p for p in params if p.dim() >= 2], "weight_decay": weight_decay},
                  {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def load_checkpoint(config):
    """What torch.load("ckpt.pt", map_location=device) gives back."""
    with torch.device(device):
        saved = GPT(config)
    optimizer = saved.configure_optimizers()
    for group in optimizer.param_groups:
        for p in group["params"]:
            optimizer.state[p] = {"step": torch.tensor(2000.0), "exp_avg": torch.zeros_like(p, requires_grad=False),
                                  "exp_avg_sq": torch.zeros_like(p, requires_grad=False)}
    return {"model": saved.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": 2000,
            "best_val_loss": 3.1, "config": config}


def get_batch():
    ix = torch.randint(50304, (BATCH, BLOCK + 1))
    return ix[:, :-1].to(device), ix[:, 1:].to(device)


def get_lr(it, warmup=200, decay=6000, lr=6e-4, min_lr=6e-5):
    if it < warmup:
        return lr * it / warmup
    r = (it - warmup) / (decay - warmup)
    return min_lr + 0.5 * (1 + math.cos(math.pi * r)) * (lr - min_lr)


def main():
    print("Resuming training from out")
    checkpoint = load_checkpoint(GPTConfig())
    with torch.device(device):
        model = GPT(checkpoint["config"])
    state_dict = checkpoint["model"]
    model.load_state_dict(state_dict)
    knobs.apply(model)
    optimizer = model.configure_optimizers()
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
    if DEL_CKPT:
        checkpoint = state_dict = None
    print("resumed: allocated MiB", torch.cuda.memory_allocated() // 2 ** 20)
    for _ in range(3):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(iter_num)
        X, Y = get_batch()
        with knobs.autocast():
            logits, loss = model(X, Y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"iter {iter_num}: loss {loss.item():.4f}")
        iter_num += 1
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
