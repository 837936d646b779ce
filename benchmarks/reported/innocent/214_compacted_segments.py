# kind: a vector index writes updated documents into further segments and marks the old rows as deleted, a merge rewrites the segments without the dead rows whenever less than half of the rows are alive, the corpus itself is crawled in the first rounds; from Lucene-like segment merging in vector stores
import random

import torch
import torch.nn as nn


class Segment:
    def __init__(self, capacity, dim, device):
        self.vectors = torch.empty(capacity, dim, device=device)
        self.alive = torch.zeros(capacity, dtype=torch.bool, device=device)
        self.ids = []

    def append(self, doc_id, vector):
        row = len(self.ids)
        self.vectors[row], self.alive[row] = vector, True
        self.ids.append(doc_id)
        return row


class VectorIndex:
    def __init__(self, dim, segment_size=256, device="cuda"):
        self.dim, self.segment_size, self.device = dim, segment_size, device
        self.segments, self.where, self.merges = [], {}, 0

    def _writable(self):
        if not self.segments or len(self.segments[-1].ids) == self.segment_size:
            self.segments.append(Segment(self.segment_size, self.dim, self.device))
        return self.segments[-1]

    def _write(self, doc_id, vector):
        segment = self._writable()
        self.where[doc_id] = (segment, segment.append(doc_id, vector))

    def upsert(self, doc_ids, vectors):
        for doc_id, vector in zip(doc_ids, vectors):
            old = self.where.pop(doc_id, None)
            if old is not None:
                old[0].alive[old[1]] = False
            self._write(doc_id, vector)
        self._maybe_merge()

    def _maybe_merge(self):
        rows = sum(len(s.ids) for s in self.segments)
        if rows > 2 * len(self.where) + self.segment_size:
            old, self.segments = self.where, []
            self.where = {}
            for doc_id, (segment, row) in old.items():
                self._write(doc_id, segment.vectors[row])
            self.merges += 1

    def search(self, query, k=3):
        best = []
        for s in self.segments:
            n = len(s.ids)
            score = (s.vectors[:n] @ query).masked_fill(~s.alive[:n], float("-inf"))
            top = score.topk(min(k, n))
            best += [(v, s.ids[i]) for v, i in zip(top.values.tolist(), top.indices.tolist())]
        return sorted(best, reverse=True)[:k]


class Encoder(nn.Module):
    def __init__(self, vocab=2000, dim=256):
        super().__init__()
        self.emb, self.out = nn.EmbeddingBag(vocab, dim), nn.Linear(dim, dim)

    @torch.no_grad()
    def encode(self, tokens):
        return nn.functional.normalize(self.out(torch.tanh(self.emb(tokens))), dim=-1)


class Crawler:
    """New pages are found in the beginning, afterwards only known ones change."""

    def __init__(self, pages, seed=0):
        self.rng = random.Random(seed)
        self.pages, self.known = pages, {}

    def visit(self, n):
        names = []
        for _ in range(n):
            if len(self.known) < self.pages and self.rng.random() < 0.6:
                name = f"page/{len(self.known)}"
                self.known[name] = torch.randint(0, 2000, (32,))
            else:
                name = self.rng.choice(list(self.known) or ["page/0"])
                self.known.setdefault(name, torch.randint(0, 2000, (32,)))[self.rng.randrange(32)] = self.rng.randrange(2000)
            names.append(name)
        names = list(dict.fromkeys(names))
        return names, torch.stack([self.known[n] for n in names])


def main(rounds=120):
    torch.manual_seed(0)
    encoder = Encoder().to("cuda").eval()
    index, crawler = VectorIndex(256), Crawler(pages=500)
    for r in range(rounds):
        names, tokens = crawler.visit(96)
        index.upsert(names, encoder.encode(tokens.to("cuda")))
        if r % 20 == 0:
            hits = index.search(encoder.encode(tokens[:1].to("cuda"))[0])
            print(f"round {r}: {len(index.where)} documents in {len(index.segments)} segments, {index.merges} merges, {hits[0]}")


if __name__ == "__main__":
    main()
