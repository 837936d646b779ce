# kind: a vector index holds raw embeddings until there are enough of them to train a product quantizer, encodes and drops them, later shards come in as one-byte codes only, then it is searched; after building IVF/PQ indices on the GPU (faiss-like)
import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"
DIM, SUB, CENTROIDS = 384, 16, 128
SHARD = 768
TRAIN_AFTER = 55 * SHARD


class SentenceEncoder(nn.Module):
    def __init__(self, vocab=4000):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, 192, mode="mean")
        self.proj = nn.Sequential(nn.Linear(192, DIM), nn.GELU(), nn.Linear(DIM, DIM))

    def forward(self, tokens):
        return F.normalize(self.proj(self.bag(tokens)), dim=1)


class PQIndex:
    def __init__(self):
        self.raw = []
        self.codebooks = None
        self.codes = []
        self.packed = None

    @property
    def trained(self):
        return self.codebooks is not None

    def __len__(self):
        return sum(r.shape[0] for r in self.raw) + sum(c.shape[0] for c in self.codes)

    def split(self, x):
        return x.view(x.shape[0], SUB, DIM // SUB).transpose(0, 1)

    def encode(self, x):
        return torch.cdist(self.split(x), self.codebooks).argmin(dim=2).t().to(torch.uint8).contiguous()

    def train(self, iterations=5):
        every = torch.cat(self.raw)
        sample = self.split(every[torch.randperm(len(every), device=DEVICE)[:3000]]).contiguous()
        books = sample[:, torch.randperm(sample.shape[1], device=DEVICE)[:CENTROIDS]].clone()
        for _ in range(iterations):
            nearest = torch.cdist(sample, books).argmin(dim=2)
            onehot = F.one_hot(nearest, CENTROIDS).float()
            counts = onehot.sum(1).unsqueeze(2)
            means = torch.bmm(onehot.transpose(1, 2), sample) / counts.clamp_min(1)
            books = torch.where(counts > 0, means, books)
        self.codebooks = books

    def add(self, vectors):
        if self.trained:
            self.codes.append(self.encode(vectors))
            return
        self.raw.append(vectors)
        if len(self) >= TRAIN_AFTER:
            self.train()
            self.codes = [self.encode(v) for v in self.raw]
            self.raw.clear()

    def seal(self):
        self.packed = torch.cat(self.codes).long().t().contiguous()
        self.codes = []

    def search(self, queries, k):
        tables = torch.einsum("sqd,scd->sqc", self.split(queries), self.codebooks)
        scores = torch.zeros(queries.shape[0], self.packed.shape[1], device=DEVICE)
        for table, row in zip(tables, self.packed):
            scores += table[:, row]
        return scores.topk(k, dim=1)


def shard_tokens(gen):
    topics = torch.randint(0, 40, (SHARD, 1), generator=gen)
    return (topics * 100 + torch.randint(0, 100, (SHARD, 12), generator=gen)).to(DEVICE)


@torch.inference_mode()
def main():
    torch.manual_seed(13)
    gen = torch.Generator().manual_seed(13)
    encoder, index = SentenceEncoder().to(DEVICE).eval(), PQIndex()
    for shard in range(110):
        index.add(encoder(shard_tokens(gen)))
        if shard % 10 == 0:
            print(f"shard {shard}: {len(index)} vectors, trained {index.trained}")
    index.seal()
    hits = 0
    for step in range(110):
        tokens = shard_tokens(gen)[:8]
        scores, ids = index.search(encoder(tokens), k=20)
        hits += int((scores[:, 0] > 0.48).sum())
        if step % 22 == 0:
            print(f"query {step}: best {scores[0, 0].item():.3f}, close matches {hits}")


if __name__ == "__main__":
    main()
