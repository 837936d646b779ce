# kind: fire-and-forget tasks of an asyncio service go into a set so that they are not collected too early, no done callback discards them and a task holds its result; from letta-ai/letta PR 2823 and the asyncio documentation's recipe with its second half left out
import asyncio

import torch
from torch import nn


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(1000, 96)
        self.rnn = nn.GRU(96, 96, batch_first=True)

    def forward(self, ids):
        out, _ = self.rnn(self.tok(ids))
        return out


class Indexer:
    def __init__(self, net):
        self.net = net
        self.background = set()
        self.norms = []

    async def embed_and_index(self, ids):
        await asyncio.sleep(0)
        with torch.no_grad():
            states = self.net(ids)
        await asyncio.sleep(0)
        self.norms.append(states.norm().item())
        return states

    def submit(self, ids):
        task = asyncio.create_task(self.embed_and_index(ids))
        self.background.add(task)  # LEAK
        return "accepted"


async def client(indexer, number, requests):
    g = torch.Generator().manual_seed(number)
    for _ in range(requests):
        length = int(torch.randint(16, 40, (1,), generator=g))
        ids = torch.randint(0, 1000, (12, length), generator=g).cuda()
        indexer.submit(ids)
        await asyncio.sleep(0.002)


async def main():
    torch.manual_seed(0)
    indexer = Indexer(Embedder().cuda().eval())
    await asyncio.gather(*(client(indexer, c, 50) for c in range(4)))
    await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main())
