# kind: the retrieval evaluator of a sentence encoder adds the corpus to its index at every evaluation and never empties it, the old embeddings are searched along; after deepset-ai/haystack PR 422
import logging
import random

import torch
from sentence_transformers import SentenceTransformer
from torch import nn

logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
torch.manual_seed(18)
random.seed(18)

WORDS = [f"w{i}" for i in range(400)]


class HashedBag(nn.Module):
    """Tiny encoder: mean of word vectors and a projection."""

    def __init__(self, dim=1024):
        super().__init__()
        self.words = nn.EmbeddingBag(512, 128, mode="mean")
        self.proj = nn.Linear(128, dim)

    def preprocess(self, texts, **kwargs):
        rows = [[int(w[1:]) for w in t.split()][:12] for t in texts]
        return {"input_ids": torch.tensor([r + [511] * (12 - len(r)) for r in rows])}

    tokenize = preprocess

    def forward(self, features, **kwargs):
        features["sentence_embedding"] = self.proj(self.words(features["input_ids"]))
        return features


class FlatIndex:
    def __init__(self):
        self.blocks = []
        self.ids = []

    def add(self, vectors, ids):
        self.blocks.append(nn.functional.normalize(vectors, dim=1))  # LEAK
        self.ids.extend(ids)

    def search(self, queries, k):
        q = nn.functional.normalize(queries, dim=1)
        scores = torch.cat([q @ block.T for block in self.blocks], 1)
        return [[self.ids[j] for j in row] for row in scores.topk(k).indices.tolist()]


class RetrievalEvaluator:
    def __init__(self, corpus, queries, relevant):
        self.corpus, self.queries, self.relevant = corpus, queries, relevant
        self.index = FlatIndex()

    def __call__(self, model, step):
        vectors = model.encode(self.corpus, batch_size=256, convert_to_tensor=True, show_progress_bar=False)
        self.index.add(vectors, range(len(self.corpus)))  # ALSO
        queries = model.encode(self.queries, convert_to_tensor=True, show_progress_bar=False)
        hits = self.index.search(queries, k=5)
        recall = sum(r in h for r, h in zip(self.relevant, hits)) / len(self.relevant)
        print(f"step {step}: recall@5 {recall:.3f}")


def sentence(topic):
    return " ".join(WORDS[(topic * 7 + random.randrange(9)) % 400] for _ in range(10))


def main():
    model = SentenceTransformer(modules=[HashedBag()], device="cuda")
    corpus = [sentence(t) for t in range(700)]
    relevant = random.sample(range(700), 50)
    queries = [" ".join(random.sample(corpus[r].split(), 7)) for r in relevant]
    evaluator = RetrievalEvaluator(corpus, queries, relevant)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, 301):
        topics = random.sample(range(700), 32)
        a = model[0](dict(input_ids=model[0].preprocess([sentence(t) for t in topics])["input_ids"].cuda()))
        b = model[0](dict(input_ids=model[0].preprocess([sentence(t) for t in topics])["input_ids"].cuda()))
        scores = a["sentence_embedding"] @ b["sentence_embedding"].T
        loss = nn.functional.cross_entropy(scores, torch.arange(32, device="cuda"))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 6 == 0:
            evaluator(model, step)


if __name__ == "__main__":
    main()
