# kind: weakref.finalize given a bound method keeps the object it watches alive; from Python docs' warning and server issues
import weakref
import torch
import torch.nn as nn


class DecoderLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.ff = nn.Linear(dim, dim)

    def forward(self, x, k_cache, v_cache, pos):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        k_cache[:, pos], v_cache[:, pos] = k, v
        att = torch.softmax(torch.einsum("bd,btd->bt", q, k_cache[:, :pos + 1]) / q.size(-1) ** 0.5, dim=-1)
        return x + self.ff(torch.einsum("bt,btd->bd", att, v_cache[:, :pos + 1]))


class Session:
    live = 0

    def __init__(self, engine, beams=4, max_len=64):
        shape = (beams, max_len, engine.dim)
        self.caches = [(torch.zeros(shape, device="cuda"), torch.zeros(shape, device="cuda"))
                       for _ in engine.layers]
        self.pos = 0
        Session.live += 1
        weakref.finalize(self, self.close)  # LEAK

    def close(self):
        if self.caches is not None:
            self.caches = None
            Session.live -= 1


class Engine(nn.Module):
    def __init__(self, dim=128, depth=2, vocab=200):
        super().__init__()
        self.dim = dim
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(DecoderLayer(dim) for _ in range(depth))
        self.lm = nn.Linear(dim, vocab)

    @torch.inference_mode()
    def generate(self, prompt, n=6):
        session = Session(self)
        tok = torch.full((4,), prompt, device="cuda")
        out = []
        for _ in range(n):
            h = self.embed(tok)
            for layer, (k, v) in zip(self.layers, session.caches):
                h = layer(h, k, v, session.pos)
            session.pos += 1
            tok = self.lm(h).argmax(-1)
            out.append(tok[0].item())
        return out


engine = Engine().cuda().eval()
for r in range(130):
    words = engine.generate(prompt=r % 200)
    if r % 40 == 0:
        print(r, words, "sessions alive:", Session.live)
