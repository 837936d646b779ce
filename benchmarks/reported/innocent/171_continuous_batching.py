# kind: one padded key/value tensor for the running batch of a generation server, joining requests are concatenated, finished rows are filtered out and empty columns trimmed, the load rises until the batch is full; after text-generation-inference's CausalLMBatch (PR 214)
import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"
VOCAB, DIM, HEADS, LAYERS = 512, 256, 4, 4
MAX_BATCH = 22


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x, mask, past):
        q, k, v = (t.unflatten(2, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, dim=2))
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp(x), (k, v)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(256, DIM)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])

    def forward(self, tokens, present, past=None):
        n = tokens.shape[1]
        positions = (present.cumsum(1) - 1).clamp_min(0)[:, -n:]
        x = self.tok(tokens) + self.pos(positions)
        causal = torch.ones(n, present.shape[1], dtype=torch.bool, device=device).tril(present.shape[1] - n)
        mask = (causal[None] & present[:, None].bool()) | torch.eye(n, present.shape[1], dtype=torch.bool, device=device)
        kept = []
        for i, layer in enumerate(self.layers):
            x, kv = layer(x, mask[:, None], None if past is None else past[i])
            kept.append(kv)
        return (x[:, -1] @ self.tok.weight.t()).argmax(1), kept


class Batch:
    def __init__(self, requests, last, present, past):
        self.requests, self.last, self.present, self.past = requests, last, present, past

    @classmethod
    def prefill(cls, model, requests):
        width = max(len(r["prompt"]) for r in requests)
        rows = torch.tensor([[0] * (width - len(r["prompt"])) + r["prompt"] for r in requests], device=device)
        lengths = torch.tensor([len(r["prompt"]) for r in requests], device=device)
        present = (torch.arange(width, device=device)[None] >= width - lengths[:, None]).long()
        last, past = model(rows, present)
        return cls(requests, last, present, past)

    def join(self, other):
        width = max(self.present.shape[1], other.present.shape[1])
        a, b = width - self.present.shape[1], width - other.present.shape[1]
        stack = lambda x, y: torch.cat([F.pad(x, (0, 0, a, 0)), F.pad(y, (0, 0, b, 0))])
        self.past = [(stack(k1, k2), stack(v1, v2)) for (k1, v1), (k2, v2) in zip(self.past, other.past)]
        self.present = torch.cat([F.pad(self.present, (a, 0)), F.pad(other.present, (b, 0))])
        self.last, self.requests = torch.cat([self.last, other.last]), self.requests + other.requests

    def decode(self, model):
        self.present = F.pad(self.present, (0, 1), value=1)
        self.last, self.past = model(self.last[:, None], self.present, self.past)
        for request in self.requests:
            request["left"] -= 1

    def filter(self):
        keep = [i for i, r in enumerate(self.requests) if r["left"] > 0]
        if len(keep) == len(self.requests):
            return
        index = torch.tensor(keep, dtype=torch.long, device=device)
        self.requests, self.last, self.present = [self.requests[i] for i in keep], self.last[index], self.present[index]
        start = self.present.shape[1] - int(self.present.sum(1).max()) if keep else 0
        self.present = self.present[:, start:]
        self.past = [(k[index, :, start:].contiguous(), v[index, :, start:].contiguous()) for k, v in self.past]


@torch.inference_mode()
def main():
    rng = random.Random(5)
    torch.manual_seed(5)
    model, waiting, running, answered = Decoder().to(device).eval(), deque(), None, 0
    for tick in range(270):
        if rng.random() < min(0.06 + 0.004 * tick, 0.33):
            waiting.append({"prompt": [rng.randrange(VOCAB) for _ in range(rng.randint(8, 24))], "left": 64})
        room = MAX_BATCH - (len(running.requests) if running else 0)
        joining = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        if joining:
            fresh = Batch.prefill(model, joining)
            if running and running.requests:
                running.join(fresh)
            else:
                running = fresh
        if running and running.requests:
            running.decode(model)
            before = len(running.requests)
            running.filter()
            answered += before - len(running.requests)
        if tick % 30 == 0 and running:
            print(f"tick {tick}: running {len(running.requests)}, width {running.present.shape[1]}, waiting {len(waiting)}, answered {answered}")


if __name__ == "__main__":
    main()
