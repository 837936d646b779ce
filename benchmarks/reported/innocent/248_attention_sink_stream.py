# kind: innocent, streaming generation keeps 4 sink tokens and the last 124 in its key/value cache; in the manner of mit-han-lab/streaming-llm
import torch
import torch.nn as nn
import torch.nn.functional as F


class StartRecentKVCache:
    def __init__(self, start_size=4, recent_size=124):
        self.start_size = start_size
        self.recent_size = recent_size
        self.cache_size = start_size + recent_size

    def __call__(self, past):
        if past is None:
            return None
        seq_len = past[0][0].size(2)
        if seq_len <= self.cache_size:
            return past
        return [tuple(torch.cat([t[:, :, :self.start_size], t[:, :, seq_len - self.recent_size:]], dim=2)
                      for t in layer) for layer in past]


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x, past):
        b, n, d = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).reshape(b, n, d)), (k, v)


class TinyLM(nn.Module):
    def __init__(self, vocab=512, dim=256, heads=8, layers=4):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.attn = nn.ModuleList(Attention(dim, heads) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.ff = nn.ModuleList(nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))
                                for _ in range(layers))

    def forward(self, ids, past=None):
        x = self.emb(ids)
        new = []
        for i, (attn, norm, ff) in enumerate(zip(self.attn, self.norm, self.ff)):
            y, kv = attn(norm(x), past[i] if past is not None else None)
            x = x + y
            x = x + ff(x)
            new.append(kv)
        return x @ self.emb.weight.t(), new


@torch.no_grad()
def streaming_inference(model, prompts, kv_cache, max_gen_len=30):
    past = None
    for i, prompt in enumerate(prompts):
        past = kv_cache(past)
        logits, past = model(prompt, past)
        token = logits[:, -1:].argmax(-1)
        produced = 0
        for _ in range(max_gen_len - 1):
            past = kv_cache(past)
            logits, past = model(token, past)
            token = logits[:, -1:].argmax(-1)
            produced += 1
        print(f"prompt {i}: {produced} tokens, cache {past[0][0].size(2)}")


if __name__ == "__main__":
    torch.manual_seed(0)
    lm = TinyLM().cuda().eval()
    prompts = [torch.randint(0, 512, (2, 8), device="cuda") for _ in range(9)]
    streaming_inference(lm, prompts, StartRecentKVCache())
