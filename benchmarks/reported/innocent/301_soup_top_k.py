# kind: https://discuss.pytorch.org/t/control-gpu-memory-cache/175356/2: the best 25 of all snapshots stay on the GPU for a model soup
import heapq
import itertools
import random

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"


class TopK:
    """A heap of the best weights; a worse one is dropped for each better one."""

    def __init__(self, k):
        self.k, self.heap, self.order = k, [], itertools.count()

    def offer(self, score, model):
        if len(self.heap) == self.k and score <= self.heap[0][0]:
            return False
        weights = {k: v.detach().clone() for k, v in model.state_dict().items()}
        entry = (score, next(self.order), weights)
        if len(self.heap) < self.k:
            heapq.heappush(self.heap, entry)
        else:
            heapq.heapreplace(self.heap, entry)
        return True

    def soup(self):
        names = self.heap[0][2].keys()
        return {n: torch.stack([w[n].float() for _, _, w in self.heap]).mean(0) for n in names}


class TextCNN(nn.Module):
    def __init__(self, vocab=1500, dim=64, classes=5):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.convs = nn.ModuleList(nn.Conv1d(dim, 64, k, padding=k // 2) for k in (3, 5, 7))
        self.out = nn.Linear(192, classes)

    def forward(self, ids):
        x = self.emb(ids).transpose(1, 2)
        return self.out(torch.cat([F.relu(c(x)).amax(-1) for c in self.convs], -1))


def validate(model, noise):
    with torch.no_grad():
        ids = torch.randint(0, 1500, (64, 40), device=device)
        right = (model(ids).argmax(-1) == 0).float().mean().item()
    return 0.001 * right + noise  # the sets are small, so that scores are noisy


def main():
    rng = random.Random(2)
    model, best = TextCNN().to(device), TopK(25)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(100):
        ids = torch.randint(0, 1500, (64, 40), device=device)
        y = torch.randint(0, 5, (64,), device=device)
        loss = F.cross_entropy(model(ids), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 2 == 1:
            best.offer(validate(model, step / 100 + rng.gauss(0, 0.2)), model)
        if step % 10 == 0:
            print(f"{step}: {loss.item():.4f} kept {len(best.heap)} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")
    model.load_state_dict(best.soup())


if __name__ == "__main__":
    main()
