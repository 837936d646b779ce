# kind: heap of the best late-interaction hits of a long scan, pushes are never answered by a pop, so that every passage's token matrix stays; from retrieval evaluators (heapq in sentence-transformers' InformationRetrievalEvaluator) and ColBERT-like code
import heapq
from itertools import count

import torch
import torch.nn as nn
import torch.nn.functional as F


class TokenEncoder(nn.Module):
    def __init__(self, vocab=2000, dim=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.mix = nn.Conv1d(dim, dim, 3, padding=1)
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids):
        e = self.emb(ids)
        return F.normalize(self.norm(e + self.mix(e.transpose(1, 2)).transpose(1, 2)), dim=-1)


def max_sim(query, passages):
    return torch.einsum("qd,npd->nqp", query, passages).amax(-1).sum(-1)


class TopHits:
    def __init__(self, k):
        self.k = k
        self.heap = []
        self.tie = count()

    def offer(self, score, pid, tokens):
        heapq.heappush(self.heap, (score, next(self.tie), pid, tokens))  # LEAK

    def best(self):
        return heapq.nlargest(self.k, self.heap)


def corpus(chunks, size=16, length=90, vocab=2000):
    g = torch.Generator().manual_seed(4)
    for c in range(chunks):
        pids = list(range(c * size, (c + 1) * size))
        yield pids, torch.randint(vocab, (size, length), generator=g)


@torch.no_grad()
def search(model, query_ids, chunks, k=10):
    query = model(query_ids.cuda())[0]
    hits = TopHits(k)
    for c, (pids, ids) in enumerate(chunks):
        passages = model(ids.cuda())
        scores = max_sim(query, passages).tolist()
        for pid, score, tokens in zip(pids, scores, passages):
            hits.offer(score, pid, tokens.clone())
        if c % 40 == 0:
            print(f"chunk {c}: best so far {hits.best()[0][0]:.3f}")
    return hits


def highlight(query, hit):
    score, _, pid, tokens = hit
    where = (query @ tokens.T).amax(0).argmax().item()
    return f"passage {pid} score {score:.3f} strongest at token {where}"


torch.manual_seed(9)
encoder = TokenEncoder().cuda().eval()
q = torch.randint(2000, (1, 8))
found = search(encoder, q, corpus(140))
with torch.no_grad():
    qv = encoder(q.cuda())[0]
for hit in found.best()[:3]:
    print(highlight(qv, hit))
