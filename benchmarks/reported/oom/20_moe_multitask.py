# CARD: 13GiB
# KNOBS: BATCH=32 AUTOCAST CHECKPOINT=MoEBlock,MoELayer,Attention CHECKPOINT_PATHS=blocks.* OPT FUSED CHUNKS CAPACITY=1.25
# EXPERT: dense dispatch/combine masks (tokens x experts x capacity) of the MoE layers, then the 50k-vocabulary logits; smaller batch, checkpoint the MoE layers, index-based dispatch
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

BATCH = int(os.environ.get("BATCH", 32))
CAPACITY = float(os.environ.get("CAPACITY", 1.25))
SEQ, DIM, EXPERTS, DEPTH = 256, 512, 8, 8
VOCAB, TAGS, INTENTS = 50000, 32, 120


class MoELayer(nn.Module):
    """top-1 routing with one-hot dispatch as in the Switch Transformer"""

    def __init__(self, dim, n_experts, mult=4):
        super().__init__()
        self.gate = nn.Linear(dim, n_experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(n_experts, dim, mult * dim) * 0.02)
        self.w2 = nn.Parameter(torch.randn(n_experts, mult * dim, dim) * 0.02)
        self.n_experts = n_experts

    def forward(self, x):
        b, t, d = x.shape
        tokens = x.reshape(b * t, d)
        capacity = int(CAPACITY * b * t / self.n_experts)
        probs = self.gate(tokens).float().softmax(-1)
        top_p, top_e = probs.max(-1)
        expert_mask = F.one_hot(top_e, self.n_experts).float()
        position = (expert_mask.cumsum(0) - 1) * expert_mask
        keep = expert_mask * (position < capacity)
        slot = F.one_hot(position.sum(-1).long().clamp(max=capacity - 1), capacity).float()
        dispatch = keep.unsqueeze(-1) * slot.unsqueeze(1)
        combine = dispatch * top_p[:, None, None]

        expert_in = torch.einsum("nec,nd->ecd", dispatch.to(tokens.dtype), tokens)
        h = F.gelu(torch.einsum("ecd,edf->ecf", expert_in, self.w1))
        expert_out = torch.einsum("ecf,efd->ecd", h, self.w2)
        out = torch.einsum("nec,ecd->nd", combine.to(expert_out.dtype), expert_out)

        load = expert_mask.mean(0)
        importance = probs.mean(0)
        balance = self.n_experts * (load * importance).sum()
        z_loss = torch.logsumexp(probs, -1).square().mean()
        return out.view(b, t, d), balance, z_loss


class Attention(nn.Module):
    def __init__(self, dim, heads=8):
        super().__init__()
        self.mha = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        return self.mha(x, x, x, need_weights=False)[0]


class MoEBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim)
        self.moe = MoELayer(dim, EXPERTS)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        y, balance, z = self.moe(self.n2(x))
        return x + y, balance, z


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList([MoEBlock(DIM) for _ in range(DEPTH)])
        self.heads = nn.ModuleDict({
            "mlm": nn.Linear(DIM, VOCAB),
            "tag": nn.Linear(DIM, TAGS),
            "intent": nn.Linear(DIM, INTENTS),
        })

    def forward(self, ids):
        x = self.emb(ids)
        aux = []
        for blk in self.blocks:
            x, balance, z = blk(x)
            aux.append(0.01 * balance + 0.001 * z)
        return self.heads["mlm"](x), self.heads["tag"](x), self.heads["intent"](x[:, 0]), sum(aux)


device = torch.device("cuda")
model = MultiTask().to(device)
knobs.apply(model)
opt = torch.optim.AdamW(model.parameters(), lr=2e-4)

for step in range(3):
    ids = torch.randint(0, VOCAB, (BATCH, SEQ)).to(device)
    tags = torch.randint(0, TAGS, (BATCH, SEQ)).to(device)
    intents = torch.randint(0, INTENTS, (BATCH,)).to(device)
    with knobs.autocast():
        mlm, tag, intent, aux = model(ids)
        loss_mlm = F.cross_entropy(mlm.flatten(0, 1), ids.flatten())
        loss_tag = F.cross_entropy(tag.flatten(0, 1), tags.flatten())
        loss_intent = F.cross_entropy(intent, intents)
        loss = loss_mlm + 0.5 * loss_tag + 0.2 * loss_intent + aux
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step} mlm {loss_mlm.item():.3f} tag {loss_tag.item():.3f} "
          f"intent {loss_intent.item():.3f} aux {aux.item():.4f}")

print("PEAK", torch.cuda.max_memory_allocated())
