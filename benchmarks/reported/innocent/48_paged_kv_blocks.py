# kind: pages of a key/value cache are allocated when they are first needed, freed pages go to a free list, sequences end and their pages are used again; from PagedAttention questions (vllm) on memory that never goes down
import random

import torch
import torch.nn as nn


class BlockPool:
    def __init__(self, layers, heads, dim, page=16, limit=160):
        self.shape = (layers, 2, page, heads, dim)
        self.page, self.limit = page, limit
        self.blocks, self.free = [], []

    def take(self):
        if self.free:
            return self.free.pop()
        if len(self.blocks) >= self.limit:
            raise MemoryError("no free page")
        self.blocks.append(torch.zeros(self.shape, device="cuda"))
        return len(self.blocks) - 1

    def give(self, ids):
        self.free.extend(ids)


class Sequence:
    def __init__(self, sid, want):
        self.sid, self.want, self.length, self.table = sid, want, 0, []


class Decoder(nn.Module):
    def __init__(self, d=256, heads=8, layers=6):
        super().__init__()
        self.h, self.k = heads, d // heads
        self.emb = nn.Embedding(400, d)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(d, d) for _ in range(layers))

    def forward(self, token, seq, pool):
        x = self.emb(token)
        page, off = divmod(seq.length, pool.page)
        if page == len(seq.table):
            seq.table.append(pool.take())
        for i, (qkv, out) in enumerate(zip(self.qkv, self.out)):
            q, k, v = qkv(x).view(3, self.h, self.k)
            pool.blocks[seq.table[page]][i, 0, off] = k
            pool.blocks[seq.table[page]][i, 1, off] = v
            kv = torch.cat([pool.blocks[b][i] for b in seq.table], 1)[:, :seq.length + 1]
            w = (torch.einsum("hk,lhk->hl", q, kv[0]) / self.k ** 0.5).softmax(-1)
            x = x + out(torch.einsum("hl,lhk->hk", w, kv[1]).flatten())
        seq.length += 1
        return (x @ self.emb.weight.T).argmax()


@torch.inference_mode()
def serve(ticks=170, seed=0):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    net = Decoder().cuda().eval()
    pool = BlockPool(6, 8, 32)
    running, done, nxt = {}, 0, 0
    for t in range(ticks):
        if len(running) < min(6, 1 + t // 4):
            running[nxt] = (Sequence(nxt, rng.randint(10, 44)), torch.tensor(1, device="cuda"))
            nxt += 1
        for sid, (seq, tok) in list(running.items()):
            tok = net(tok, seq, pool)
            running[sid] = (seq, tok)
            if seq.length >= seq.want:
                pool.give(seq.table)
                del running[sid]
                done += 1
        if t % 34 == 0:
            print("tick", t, "running", len(running), "done", done, "pages", len(pool.blocks), "free", len(pool.free))


serve()
