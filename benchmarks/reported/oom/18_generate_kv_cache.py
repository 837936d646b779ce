# CARD: 8GiB
# KNOBS: BATCH=192 NEW_TOKENS=128 KV_HEADS=16 INPLACE
# EXPERT: the key/value cache grows with batch x tokens and the old and new cache live together during a step; fewer sequences at a time or fewer new tokens, GQA/quantized cache
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

BATCH = int(os.environ.get("BATCH", 192))          # sequences that are sampled together
NEW_TOKENS = int(os.environ.get("NEW_TOKENS", 128))
KV_HEADS = int(os.environ.get("KV_HEADS", 16))
INPLACE = os.environ.get("INPLACE") == "1"         # drop a layer's old cache as soon as the new one exists
PROMPT = 64
VOCAB, DIM, HEADS, LAYERS = 32000, 2048, 16, 14
HEAD_DIM = DIM // HEADS


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, (x.size(-1),), self.weight)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq = nn.Linear(DIM, HEADS * HEAD_DIM, bias=False)
        self.wk = nn.Linear(DIM, KV_HEADS * HEAD_DIM, bias=False)
        self.wv = nn.Linear(DIM, KV_HEADS * HEAD_DIM, bias=False)
        self.wo = nn.Linear(HEADS * HEAD_DIM, DIM, bias=False)

    def forward(self, x, past=None):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, HEADS, HEAD_DIM).transpose(1, 2)
        k = self.wk(x).view(b, t, KV_HEADS, HEAD_DIM).transpose(1, 2)
        v = self.wv(x).view(b, t, KV_HEADS, HEAD_DIM).transpose(1, 2)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None, enable_gqa=KV_HEADS != HEADS)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1)), (k, v)


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(DIM), RMSNorm(DIM)
        self.attn = Attention()
        self.gate = nn.Linear(DIM, 5632, bias=False)
        self.up = nn.Linear(DIM, 5632, bias=False)
        self.down = nn.Linear(5632, DIM, bias=False)

    def forward(self, x, past):
        a, present = self.attn(self.norm1(x), past)
        x = x + a
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), present


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList([DecoderLayer() for _ in range(LAYERS)])
        self.norm = RMSNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids, cache):
        x = self.tok(ids)
        new_cache = []
        for layer, past in zip(self.layers, cache):
            x, present = layer(x, past)
            new_cache.append(present)
            if INPLACE:
                cache[len(new_cache) - 1] = past = None
        return self.head(self.norm(x[:, -1:])), new_cache


@torch.inference_mode()
def generate(model, prompt, max_new_tokens, temperature=0.8, top_k=50):
    tokens = prompt
    cache = [None] * LAYERS
    ids = prompt
    for i in range(max_new_tokens):
        logits, cache = model(ids, cache)
        logits = logits[:, -1].float() / temperature
        values, indices = logits.topk(top_k, dim=-1)
        probs = F.softmax(values, dim=-1)
        ids = indices.gather(-1, torch.multinomial(probs, 1))
        tokens = torch.cat([tokens, ids], dim=1)
        if i % 32 == 0:
            print(f"token {i}: {torch.cuda.memory_allocated() / 2**30:.2f} GiB")
    return tokens


if __name__ == "__main__":
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LM().eval()
    prompt = torch.randint(0, VOCAB, (BATCH, PROMPT)).cuda()
    t0 = time.time()
    out = generate(model, prompt, NEW_TOKENS)
    print(out.shape, f"{out.numel() / (time.time() - t0):.0f} tokens/s")
    print("PEAK", torch.cuda.max_memory_allocated())
