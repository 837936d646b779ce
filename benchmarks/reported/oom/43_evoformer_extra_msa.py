# CARD: 40GiB
# KNOBS: BATCH=1 CROP=384 EXTRA_MSA=5120 MSA=512 ROW_CHUNK BLOCK_CKPT=1 OPT FUSED
# EXPERT: the row attention of the extra MSA stack has 5120 x 8 heads x 384 x 384 scores (11.25 GiB in bf16, several copies for the biases, the softmax and its backward, made again in the recomputation) although each block is already checkpointed and the batch is 1; fewer extra MSA rows (2048), crop 256, the row attention in chunks of rows (each recomputed) or a memory-efficient attention; the optimizer and the EMA copy (a few MiB) do not matter, the block checkpointing that is there already is not enough
# Source: aqlaboratory/openfold 9 (fine-tuning settings on 32 GB, batch 1: msa_att_row tried to allocate 11.25 GiB), also 36 and 473; written by hand
import os
from contextlib import nullcontext

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import knobs

CFG = dict(
    batch=int(os.environ.get("BATCH", 1)),
    n_res=int(os.environ.get("CROP", 384)),
    n_extra=int(os.environ.get("EXTRA_MSA", 5120)),
    n_msa=int(os.environ.get("MSA", 512)),
    row_chunk=int(os.environ.get("ROW_CHUNK", 0)),
    block_ckpt=os.environ.get("BLOCK_CKPT", "1") == "1",
    c_m=256, c_e=64, c_z=128, extra_blocks=2, blocks=4,
)


def softmax_no_cast(t, dim=-1):
    with torch.autocast("cuda", enabled=False):
        return F.softmax(t, dim=dim)


class Attention(nn.Module):
    """gated attention over the last but one dimension, biases are added to the scores"""

    def __init__(self, c_in, heads, c_h):
        super().__init__()
        self.h, self.c = heads, c_h
        self.q, self.k, self.v = (nn.Linear(c_in, heads * c_h, bias=False) for _ in range(3))
        self.g, self.o = nn.Linear(c_in, heads * c_h), nn.Linear(heads * c_h, c_in)

    def forward(self, x, biases):
        q, k, v = (f(x).unflatten(-1, (self.h, self.c)).transpose(-2, -3) for f in (self.q, self.k, self.v))
        a = torch.matmul(q * self.c ** -0.5, k.transpose(-1, -2))
        for b in biases:
            a = a + b.to(a.dtype)
        a = softmax_no_cast(a)
        o = torch.matmul(a, v).transpose(-2, -3).flatten(-2)
        return self.o(o * torch.sigmoid(self.g(x)))


class MSARowAttentionWithPairBias(nn.Module):
    def __init__(self, c_m, c_z, heads, c_h):
        super().__init__()
        self.ln_m, self.ln_z = nn.LayerNorm(c_m), nn.LayerNorm(c_z)
        self.z = nn.Linear(c_z, heads, bias=False)
        self.mha = Attention(c_m, heads, c_h)

    def forward(self, m, z, mask):
        m = self.ln_m(m)
        pair = self.z(self.ln_z(z)).permute(0, 3, 1, 2).unsqueeze(1)
        biases = [1e4 * (mask[:, :, None, None, :] - 1), pair]
        n = CFG["row_chunk"]
        if not n:
            return self.mha(m, biases)
        return torch.cat([checkpoint(self.mha, a, [b, pair], use_reentrant=False)
                          for a, b in zip(m.split(n, 1), biases[0].split(n, 1))], 1)


class MSAColumnAttention(nn.Module):
    def __init__(self, c_m, heads, c_h):
        super().__init__()
        self.ln, self.mha = nn.LayerNorm(c_m), Attention(c_m, heads, c_h)

    def forward(self, m, mask):
        mt = self.ln(m).transpose(1, 2)
        bias = 1e4 * (mask.transpose(1, 2)[:, :, None, None, :] - 1)
        return self.mha(mt, [bias]).transpose(1, 2)


class GlobalColumnAttention(nn.Module):
    def __init__(self, c, heads, c_h):
        super().__init__()
        self.ln, self.h, self.c = nn.LayerNorm(c), heads, c_h
        self.q, self.k, self.v = nn.Linear(c, heads * c_h, bias=False), nn.Linear(c, c_h, bias=False), nn.Linear(c, c_h, bias=False)
        self.g, self.o = nn.Linear(c, heads * c_h), nn.Linear(heads * c_h, c)

    def forward(self, m, mask):
        m = self.ln(m).transpose(1, 2)
        w = mask.transpose(1, 2).unsqueeze(-1)
        q = self.q((m * w).sum(2) / (w.sum(2) + 1e-10)).unflatten(-1, (self.h, self.c)) * self.c ** -0.5
        a = softmax_no_cast(torch.matmul(q, self.k(m).transpose(-1, -2)))
        o = torch.matmul(a, self.v(m)).flatten(-2).unsqueeze(2)
        return self.o(o * torch.sigmoid(self.g(m))).transpose(1, 2)


class Transition(nn.Sequential):
    def __init__(self, c, n=4):
        super().__init__(nn.LayerNorm(c), nn.Linear(c, n * c), nn.ReLU(), nn.Linear(n * c, c))


class OuterProductMean(nn.Module):
    def __init__(self, c_m, c_z, c=32):
        super().__init__()
        self.ln, self.a, self.b, self.o = nn.LayerNorm(c_m), nn.Linear(c_m, c), nn.Linear(c_m, c), nn.Linear(c * c, c_z)

    def forward(self, m):
        m = self.ln(m)
        outer = torch.einsum("bsic,bsjd->bijcd", self.a(m), self.b(m)).flatten(-2)
        return self.o(outer) / m.shape[1]


class TriangleMultiplication(nn.Module):
    def __init__(self, c, outgoing):
        super().__init__()
        self.outgoing = outgoing
        self.ln_in, self.ln_out = nn.LayerNorm(c), nn.LayerNorm(c)
        self.ap, self.ag, self.bp, self.bg, self.g, self.o = (nn.Linear(c, c) for _ in range(6))

    def forward(self, z):
        z = self.ln_in(z)
        a, b = self.ap(z) * self.ag(z).sigmoid(), self.bp(z) * self.bg(z).sigmoid()
        x = torch.einsum("bikc,bjkc->bijc" if self.outgoing else "bkic,bkjc->bijc", a, b)
        return self.o(self.ln_out(x)) * self.g(z).sigmoid()


class TriangleAttention(nn.Module):
    def __init__(self, c, starting, heads=4, c_h=32):
        super().__init__()
        self.starting, self.ln, self.b, self.mha = starting, nn.LayerNorm(c), nn.Linear(c, heads, bias=False), Attention(c, heads, c_h)

    def forward(self, z):
        z = z if self.starting else z.transpose(1, 2)
        z = self.ln(z)
        out = self.mha(z, [self.b(z).permute(0, 3, 1, 2).unsqueeze(1)])
        return out if self.starting else out.transpose(1, 2)


class EvoformerBlock(nn.Module):
    def __init__(self, c_m, c_z, extra):
        super().__init__()
        self.msa_att_row = MSARowAttentionWithPairBias(c_m, c_z, 8, 8 if extra else 32)
        self.msa_att_col = GlobalColumnAttention(c_m, 8, 8) if extra else MSAColumnAttention(c_m, 8, 32)
        self.msa_transition, self.pair_transition = Transition(c_m), Transition(c_z)
        self.opm = OuterProductMean(c_m, c_z)
        self.tri_mul_out, self.tri_mul_in = TriangleMultiplication(c_z, True), TriangleMultiplication(c_z, False)
        self.tri_att_start, self.tri_att_end = TriangleAttention(c_z, True), TriangleAttention(c_z, False)
        self.row_drop, self.pair_drop = nn.Dropout(0.15), nn.Dropout(0.25)

    def forward(self, m, z, mask):
        m = m + self.row_drop(self.msa_att_row(m, z, mask))
        m = m + self.msa_att_col(m, mask)
        m = m + self.msa_transition(m)
        z = z + self.opm(m)
        for f in (self.tri_mul_out, self.tri_mul_in, self.tri_att_start, self.tri_att_end):
            z = z + self.pair_drop(f(z))
        return m, z + self.pair_transition(z)


class Stack(nn.ModuleList):
    def forward(self, m, z, mask):
        for block in self:
            m, z = checkpoint(block, m, z, mask, use_reentrant=False) if CFG["block_ckpt"] and torch.is_grad_enabled() else block(m, z, mask)
        return m, z


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        c_m, c_e, c_z = CFG["c_m"], CFG["c_e"], CFG["c_z"]
        self.msa_embed, self.extra_embed, self.pair_embed = nn.Linear(49, c_m), nn.Linear(25, c_e), nn.Linear(65, c_z)
        self.extra_msa_stack = Stack(EvoformerBlock(c_e, c_z, True) for _ in range(CFG["extra_blocks"]))
        self.evoformer = Stack(EvoformerBlock(c_m, c_z, False) for _ in range(CFG["blocks"]))
        self.distogram, self.masked_msa, self.plddt = nn.Linear(c_z, 64), nn.Linear(c_m, 23), nn.Linear(c_m, 50)

    def forward(self, batch):
        z = self.pair_embed(batch["relpos"])
        _, z = self.extra_msa_stack(self.extra_embed(batch["extra_msa"]), z, batch["extra_mask"])
        m, z = self.evoformer(self.msa_embed(batch["msa"]), z, batch["msa_mask"])
        logits = self.distogram(z)
        return {"distogram": logits + logits.transpose(1, 2), "masked_msa": self.masked_msa(m), "plddt": self.plddt(m[:, 0])}


class ExponentialMovingAverage:
    def __init__(self, model, decay=0.999):
        self.params = {k: v.detach().clone() for k, v in model.state_dict().items()}
        self.decay = decay

    def update(self, model):
        with torch.no_grad():
            for k, v in model.state_dict().items():
                self.params[k].sub_((self.params[k] - v) * (1 - self.decay))


def make_batch():
    b, r, s, e = CFG["batch"], CFG["n_res"], CFG["n_msa"], CFG["n_extra"]
    d = "cuda"
    return {
        "msa": torch.rand(b, s, r, 49, device=d), "extra_msa": torch.rand(b, e, r, 25, device=d), "relpos": torch.rand(b, r, r, 65, device=d),
        "msa_mask": torch.ones(b, s, r, device=d), "extra_mask": torch.ones(b, e, r, device=d),
        "dist_bins": torch.randint(0, 64, (b, r, r), device=d), "true_msa": torch.randint(0, 23, (b, s, r), device=d),
        "lddt_bins": torch.randint(0, 50, (b, r), device=d),
    }


def loss_fn(out, batch):
    terms = {
        "distogram": 0.3 * F.cross_entropy(out["distogram"].float().flatten(0, -2), batch["dist_bins"].flatten()),
        "masked_msa": 2.0 * F.cross_entropy(out["masked_msa"].float().flatten(0, -2), batch["true_msa"].flatten()),
        "plddt": 0.01 * F.cross_entropy(out["plddt"].float().flatten(0, -2), batch["lddt_bins"].flatten()),
    }
    return sum(terms.values()), terms


model = knobs.apply(Model().cuda())
ema = ExponentialMovingAverage(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-5)
precision = torch.autocast("cuda", dtype=torch.bfloat16) if os.environ.get("PRECISION", "bf16") == "bf16" else nullcontext()

for step in range(3):
    batch = make_batch()
    with precision:
        out = model(batch)
    loss, terms = loss_fn(out, batch)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    ema.update(model)
    print(step, loss.item(), {k: v.item() for k, v in terms.items()})
