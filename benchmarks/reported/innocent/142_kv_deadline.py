# kind: prefilled blocks wait for the decode side until they are read or their deadline passes, unread ones pile up for 30 ticks and then expire tick by tick; after vllm-project/vllm PR 26012
import heapq

import torch
from torch import nn

torch.manual_seed(4)


class Prefill(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.embed = nn.Embedding(500, dim)
        self.kv = nn.Linear(dim, 2 * dim)

    @torch.inference_mode()
    def forward(self, tokens):
        return self.kv(self.embed(tokens.cuda()))


class Outbox:
    """Blocks that the remote side may fetch; aborted requests are never fetched."""

    def __init__(self, ttl):
        self.ttl = ttl
        self.blocks = {}
        self.deadlines = []
        self.expired = 0

    def offer(self, rid, kv, now):
        self.blocks[rid] = kv
        heapq.heappush(self.deadlines, (now + self.ttl, rid))

    def fetch(self, rid):
        return self.blocks.pop(rid, None)

    def expire(self, now):
        while self.deadlines and self.deadlines[0][0] <= now:
            _, rid = heapq.heappop(self.deadlines)
            if self.blocks.pop(rid, None) is not None:
                self.expired += 1


class Decoder(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.out = nn.Linear(dim, 500)

    @torch.inference_mode()
    def forward(self, kv, steps=100):
        keys, values = kv.chunk(2, -1)
        q = keys[-1:]
        for _ in range(steps):
            attn = (q @ keys.T / 10).softmax(-1)
            q = attn @ values
        return self.out(q).argmax().item()


def main():
    prefill, decoder = Prefill().cuda(), Decoder().cuda()
    outbox = Outbox(ttl=30)
    gen = torch.Generator().manual_seed(5)
    waiting, answers = [], []
    for now in range(300):
        outbox.expire(now)
        tokens = torch.randint(0, 500, (1500,), generator=gen)
        outbox.offer(now, prefill(tokens), now)
        aborted = float(torch.rand((), generator=gen)) < 0.6
        if not aborted:
            delay = int(torch.randint(1, 12, (1,), generator=gen))
            heapq.heappush(waiting, (now + delay, now))
        while waiting and waiting[0][0] <= now:
            _, rid = heapq.heappop(waiting)
            kv = outbox.fetch(rid)
            if kv is not None:
                answers.append(decoder(kv))
        if now % 70 == 69:
            print(f"tick {now + 1}: {len(answers)} decoded, {outbox.expired} expired, {len(outbox.blocks)} waiting")


if __name__ == "__main__":
    main()
