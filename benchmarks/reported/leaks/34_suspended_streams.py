# kind: generators of streamed answers stay suspended in a table, their frames hold the key/value cache; from text-generation servers with streaming
import torch
import torch.nn as nn


class Attn(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.h, self.hd = heads, dim // heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, past):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, self.hd).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return self.o(y.transpose(1, 2).reshape(b, t, d)), (k, v)


class TinyLM(nn.Module):
    def __init__(self, vocab=256, dim=128, layers=3):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.att = nn.ModuleList(Attn(dim) for _ in range(layers))
        self.ff = nn.ModuleList(nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)) for _ in range(layers))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids, past):
        x, new = self.tok(ids), []
        for a, f, p in zip(self.att, self.ff, past):
            y, kv = a(x, p)
            x = x + y
            x = x + f(x)
            new.append(kv)
        return self.head(x[:, -1]), new

    def stream(self, prompt, limit=64):
        """Yields one token after the other."""
        past = [None] * len(self.att)
        ids = prompt
        for _ in range(limit):
            with torch.no_grad():
                logits, past = self(ids, past)
            ids = logits.argmax(-1, keepdim=True) % 256
            yield ids


class Endpoint:
    def __init__(self):
        self.model = TinyLM().cuda().eval()
        self.streams = {}

    def start(self, rid, text):
        ids = torch.tensor([list(text.encode())]).cuda()
        self.streams[rid] = self.model.stream(ids)  # LEAK

    def poll(self, rid, n):
        out = []
        gen = self.streams[rid]
        for tok in gen:
            out.append(tok)
            if len(out) == n:
                return torch.cat(out, 1).cpu().tolist()[0], True
        del self.streams[rid]
        return [t.item() for t in out], False


ep = Endpoint()
story = "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals. " * 3
chars = 0
for rid in range(70):
    ep.start(rid, story[: 200 + rid % 20])
    # the browser shows the first lines, most people do not press "more"
    words, more = ep.poll(rid, 6)
    chars += len(words)
    if rid % 20 == 0:
        print("request", rid, "characters sent", chars, "more" if more else "done")
