# kind: https://github.com/vllm-project/vllm/issues/27073: conversations keep their keys and values; idle sessions expire, long ones lose their first turns
import random
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"
DIM, HEADS, LAYERS = 256, 8, 3
MAX_CONTEXT, TTL = 160, 60


@dataclass
class Session:
    user: int
    last_used: int = 0
    kv: list = field(default_factory=lambda: [None] * LAYERS)

    def extend(self, layer, k, v):
        old = self.kv[layer]
        if old is not None:
            k, v = torch.cat([old[0], k], 2), torch.cat([old[1], v], 2)
        if k.shape[2] > MAX_CONTEXT:
            k, v = k[:, :, -MAX_CONTEXT:].contiguous(), v[:, :, -MAX_CONTEXT:].contiguous()
        self.kv[layer] = (k, v)
        return k, v


class Decoder(nn.Module):
    def __init__(self, vocab=2000):
        super().__init__()
        self.emb = nn.Embedding(vocab, DIM)
        self.qkv = nn.ModuleList(nn.Linear(DIM, 3 * DIM) for _ in range(LAYERS))
        self.ffn = nn.ModuleList(nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.SiLU(), nn.Linear(2 * DIM, DIM)) for _ in range(LAYERS))
        self.head = nn.Linear(DIM, vocab, bias=False)

    def forward(self, ids, session):
        x = self.emb(ids)
        b, n, c = x.shape
        for i, (qkv, ffn) in enumerate(zip(self.qkv, self.ffn)):
            q, k, v = qkv(x).view(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
            k, v = session.extend(i, k, v)
            y = F.scaled_dot_product_attention(q, k, v)
            x = x + y.transpose(1, 2).reshape(b, n, c)
            x = x + ffn(x)
        return self.head(x[:, -1])


class ChatServer:
    def __init__(self):
        self.model = Decoder().to(device).eval()
        self.sessions = {}

    def expire(self, now):
        for user in [u for u, s in self.sessions.items() if now - s.last_used > TTL]:
            del self.sessions[user]

    @torch.inference_mode()
    def turn(self, now, user):
        self.expire(now)
        session = self.sessions.setdefault(user, Session(user))
        session.last_used = now
        ids = torch.randint(0, 2000, (1, 32), device=device)
        logits = self.model(ids, session)
        for _ in range(3):
            logits = self.model(logits.argmax(-1, keepdim=True), session)
        return int(logits.argmax())


def main():
    rng = random.Random(8)
    server = ChatServer()
    for now in range(180):
        server.turn(now, rng.randrange(24))
        if now % 15 == 0:
            print(f"turn {now}: sessions {len(server.sessions)} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
