# kind: a vector index marks the old version of an updated document as deleted and writes the new one into a further segment, segments are sealed and never compacted, so each refresh of the same corpus adds to it; from questions on deleted vectors that go on taking memory (hnswlib mark_deleted and stores built on it)
import random

import torch
import torch.nn as nn


class Segment:
    def __init__(self, capacity, dim, device):
        self.vectors = torch.empty(capacity, dim, device=device)
        self.alive = torch.zeros(capacity, dtype=torch.bool, device=device)
        self.ids = []

    @property
    def full(self):
        return len(self.ids) == len(self.vectors)

    def append(self, doc_id, vector):
        row = len(self.ids)
        self.vectors[row] = vector
        self.alive[row] = True
        self.ids.append(doc_id)
        return row


class VectorIndex:
    def __init__(self, dim, segment_size=256, device="cuda"):
        self.dim, self.segment_size, self.device = dim, segment_size, device
        self.segments = []
        self.where = {}

    def __len__(self):
        return len(self.where)

    def _roll(self):
        segment = Segment(self.segment_size, self.dim, self.device)
        self.segments.append(segment)  # LEAK
        return segment

    def _writable(self):
        if not self.segments or self.segments[-1].full:
            return self._roll()
        return self.segments[-1]

    def _mark_deleted(self, doc_id):
        old = self.where.pop(doc_id, None)
        if old is not None:
            segment, row = old
            segment.alive[row] = False

    def upsert(self, doc_ids, vectors):
        for doc_id, vector in zip(doc_ids, vectors):
            self._mark_deleted(doc_id)
            segment = self._writable()
            self.where[doc_id] = (segment, segment.append(doc_id, vector))

    def search(self, query, k=5):
        best = []
        for segment in self.segments:
            score = (segment.vectors @ query).masked_fill(~segment.alive, float("-inf"))
            top = score.topk(min(k, len(segment.ids)))
            best += [(s, segment.ids[i]) for s, i in zip(top.values.tolist(), top.indices.tolist()) if i < len(segment.ids)]
        return sorted(best, reverse=True)[:k]


class Encoder(nn.Module):
    def __init__(self, vocab=2000, dim=256):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, dim)
        self.out = nn.Linear(dim, dim)

    @torch.no_grad()
    def encode(self, tokens):
        return nn.functional.normalize(self.out(torch.tanh(self.emb(tokens))), dim=-1)


class Crawler:
    """Comes back to the same pages for ever, their text changes a little every time."""

    def __init__(self, pages, length=32, seed=0):
        self.rng = random.Random(seed)
        self.text = {f"page/{i}": torch.randint(0, 2000, (length,)) for i in range(pages)}

    def visit(self, n):
        names = self.rng.sample(sorted(self.text), n)
        for name in names:
            self.text[name][self.rng.randrange(32)] = self.rng.randrange(2000)
        return names, torch.stack([self.text[n] for n in names])


def main(rounds=80):
    torch.manual_seed(0)
    encoder = Encoder().to("cuda").eval()
    index, crawler = VectorIndex(256), Crawler(pages=400)
    for r in range(rounds):
        names, tokens = crawler.visit(192)
        index.upsert(names, encoder.encode(tokens.to("cuda")))
        if r % 20 == 0:
            hits = index.search(encoder.encode(tokens[:1].to("cuda"))[0])
            print(f"round {r}: {len(index)} documents, nearest to {names[0]}: {[h[1] for h in hits[:3]]}")


if __name__ == "__main__":
    main()
