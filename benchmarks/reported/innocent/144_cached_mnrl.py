# kind: GradCache keeps embeddings and their gradients of all mini-batches of a step, the batch size is raised in stages up to its maximum; after huggingface/sentence-transformers PR 1759
import logging
import random

import torch
from sentence_transformers import SentenceTransformer, losses
from torch import nn

logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
torch.manual_seed(6)
random.seed(6)


class BagEncoder(nn.Module):
    def __init__(self, dim=2048):
        super().__init__()
        self.words = nn.Embedding(600, 96)
        self.mlp = nn.Sequential(nn.Linear(96, 128), nn.GELU(), nn.Linear(128, dim))

    def preprocess(self, texts, **kwargs):
        rows = [[int(w) for w in t.split()] for t in texts]
        return {"input_ids": torch.tensor(rows)}

    tokenize = preprocess

    def forward(self, features, **kwargs):
        x = self.words(features["input_ids"])
        features["sentence_embedding"] = self.mlp(x.mean(1))
        return features


def pair(topic):
    words = [topic * 3 % 600, (topic * 5 + 1) % 600]
    noise = [random.randrange(600) for _ in range(12)]
    return (" ".join(map(str, words + noise[:6])), " ".join(map(str, words + noise[6:])))


def main():
    model = SentenceTransformer(modules=[BagEncoder()], device="cuda")
    loss_fn = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=64)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    encoder = model[0]
    for step in range(50):
        batch_size = 128 * min(1 + step // 6, 5)
        pairs = [pair(t) for t in random.sample(range(2000), batch_size)]
        features = [{k: v.cuda() for k, v in encoder.preprocess(list(side)).items()} for side in zip(*pairs)]
        loss = loss_fn(features, None)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 9:
            print(f"step {step + 1} batch {batch_size} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
