# kind: a cache of keys and values grows within each call of generate and goes with it; after huggingface/transformers issue 28707
import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, past=None):
        b, n, d = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return self.proj(o.transpose(1, 2).reshape(b, n, d)), (k, v)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attn = CausalSelfAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x, past=None):
        a, present = self.attn(self.n1(x), past)
        x = x + a
        return x + self.mlp(self.n2(x)), present


class CausalLM(nn.Module):
    def __init__(self, vocab=256, dim=128, layers=3, heads=4, max_len=512):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(max_len, dim)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(layers)])
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids, past=None):
        start = 0 if past is None else past[0][0].shape[2]
        h = self.wte(ids) + self.wpe(torch.arange(start, start + ids.shape[1], device=ids.device))
        presents = []
        for i, b in enumerate(self.blocks):
            h, p = b(h, None if past is None else past[i])
            presents.append(p)
        return self.head(h[:, -1]), presents


class GenerationModel:
    def __init__(self, device="cuda", max_new_tokens=60):
        self.model = CausalLM().to(device).eval()
        self.device = device
        self.max_new_tokens = max_new_tokens

    @torch.no_grad()
    def __call__(self, prompts):
        n = min(len(p) for p in prompts)
        ids = torch.tensor([[ord(c) % 256 for c in p[:n]] for p in prompts], device=self.device)
        logits, past = self.model(ids)
        out = [logits.argmax(-1, keepdim=True)]
        for _ in range(self.max_new_tokens - 1):
            logits, past = self.model(out[-1], past)
            out.append(logits.argmax(-1, keepdim=True))
        return torch.cat(out, dim=1).tolist()


def main():
    torch.manual_seed(0)
    pipe = GenerationModel()
    answers = []
    for call in range(12):
        prompts = ["Question %d: what is the capital of country number %d? " % (call, j) * 2 for j in range(16)]
        answers.extend(pipe(prompts))
    print(len(answers), len(answers[-1]))


if __name__ == "__main__":
    main()
