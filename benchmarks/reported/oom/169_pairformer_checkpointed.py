# CARD: 3GiB
# KNOBS: CHUNKS=<parts of the rows in attention, each checkpointed>, SDPA=1, AUTOCAST=1, CROP=<residues>, BATCH=<proteins>, FUSED=1
# EXPERT: blocks are checkpointed already and the batch is 1: the N^3 scores inside one block are the peak: chunk the triangle attention (with recompute) or fuse it, else a smaller crop
# from: https://github.com/aqlaboratory/openfold/issues/9
import atexit
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.checkpoint import checkpoint

HP = {
    "model": {"c_z": 128, "heads": 4, "c_hidden": 32, "blocks": 8, "transition": 4},
    "data": {"crop": int(os.environ.get("CROP", 320)), "batch": int(os.environ.get("BATCH", 1)), "bins": 64},
    "attention": {"chunks": int(os.environ.get("CHUNKS", 0)), "sdpa": os.environ.get("SDPA") == "1"},
}


class TriangleAttention(nn.Module):
    def __init__(self, c_z, heads, c_hidden, starting):
        super().__init__()
        self.h, self.c, self.starting = heads, c_hidden, starting
        self.norm = nn.LayerNorm(c_z)
        self.qkv = nn.Linear(c_z, 3 * heads * c_hidden, bias=False)
        self.bias = nn.Linear(c_z, heads, bias=False)
        self.gate = nn.Linear(c_z, heads * c_hidden)
        self.out = nn.Linear(heads * c_hidden, c_z)

    def attend(self, q, k, v, bias):
        if HP["attention"]["sdpa"]:
            b, r, h, n, c = q.shape
            mask = bias.expand(b, r, h, n, n).flatten(0, 1)
            return nn.functional.scaled_dot_product_attention(
                q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), attn_mask=mask).unflatten(0, (b, r))
        a = torch.matmul(q, k.transpose(-1, -2)) / self.c ** 0.5
        a = a + bias
        a = torch.softmax(a, -1)
        return torch.matmul(a, v)

    def forward(self, z):
        if not self.starting:
            z = z.transpose(1, 2)
        x = self.norm(z)
        b, n, _, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, n, 3, self.h, self.c).permute(3, 0, 1, 4, 2, 5)
        bias = self.bias(x).permute(0, 3, 1, 2).unsqueeze(1)  # b 1 h n n
        chunks = HP["attention"]["chunks"]
        if chunks:
            parts = zip(q.chunk(chunks, 1), k.chunk(chunks, 1), v.chunk(chunks, 1))
            o = torch.cat([checkpoint(self.attend, *p, bias, use_reentrant=False) for p in parts], 1)
        else:
            o = self.attend(q, k, v, bias)
        o = o.transpose(2, 3).reshape(b, n, n, -1) * torch.sigmoid(self.gate(x))
        o = self.out(o)
        return o if self.starting else o.transpose(1, 2)


class TriangleMultiplication(nn.Module):
    def __init__(self, c_z):
        super().__init__()
        self.norm_in, self.norm_out = nn.LayerNorm(c_z), nn.LayerNorm(c_z)
        self.ab, self.g_ab = nn.Linear(c_z, 2 * c_z), nn.Linear(c_z, 2 * c_z)
        self.gate, self.out = nn.Linear(c_z, c_z), nn.Linear(c_z, c_z)

    def forward(self, z):
        z = self.norm_in(z)
        a, b = (self.ab(z) * torch.sigmoid(self.g_ab(z))).chunk(2, -1)
        x = torch.einsum("bikc,bjkc->bijc", a, b)
        return self.out(self.norm_out(x)) * torch.sigmoid(self.gate(z))


class PairBlock(nn.Module):
    def __init__(self, c_z, heads, c_hidden, transition, **_):
        super().__init__()
        self.layers = nn.ModuleDict({
            "mul": TriangleMultiplication(c_z),
            "att_start": TriangleAttention(c_z, heads, c_hidden, True),
            "att_end": TriangleAttention(c_z, heads, c_hidden, False),
            "transition": nn.Sequential(nn.LayerNorm(c_z), nn.Linear(c_z, transition * c_z), nn.ReLU(),
                                        nn.Linear(transition * c_z, c_z)),
        })

    def forward(self, z):
        for layer in self.layers.values():
            z = z + layer(z)
        return z


class Distogram(nn.Module):
    def __init__(self):
        super().__init__()
        m = HP["model"]
        self.embed = nn.Embedding(21, m["c_z"])
        self.relpos = nn.Embedding(65, m["c_z"])
        self.blocks = nn.ModuleList([PairBlock(**m) for _ in range(m["blocks"])])
        self.head = nn.Linear(m["c_z"], HP["data"]["bins"])

    def forward(self, aatype):
        n = aatype.shape[1]
        idx = torch.arange(n, device=aatype.device)
        rel = (idx[:, None] - idx[None]).clamp(-32, 32) + 32
        e = self.embed(aatype)
        z = e[:, :, None] + e[:, None] + self.relpos(rel)
        for block in self.blocks:
            z = checkpoint(block, z, use_reentrant=False)
        return self.head(z + z.transpose(1, 2))


def main():
    atexit.register(lambda: print("PEAK", torch.cuda.max_memory_allocated()))
    set_seed(42)
    accelerator = Accelerator(mixed_precision="bf16" if os.environ.get("AUTOCAST") == "1" else "no")
    model = Distogram()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=os.environ.get("FUSED") == "1")
    model, optimizer = accelerator.prepare(model, optimizer)
    d = HP["data"]
    for step in range(3):
        aatype = torch.randint(0, 21, (d["batch"], d["crop"]), device=accelerator.device)
        target = torch.randint(0, d["bins"], (d["batch"], d["crop"], d["crop"]), device=accelerator.device)
        logits = model(aatype)
        loss = nn.functional.cross_entropy(logits.flatten(0, 2).float(), target.flatten())
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print("step", step, loss.item())


if __name__ == "__main__":
    main()
