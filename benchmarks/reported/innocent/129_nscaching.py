# kind: negative-sample caches are made the first time a (head, relation) pair is seen and there are finitely many pairs; after yzhangee/NSCaching
import torch
from torch import nn


class NegativeCache:
    def __init__(self, n_entities, size=256, draws=256):
        self.n_entities, self.size, self.draws = n_entities, size, draws
        self.slots = {}

    def get(self, key):
        if key not in self.slots:
            self.slots[key] = torch.randint(0, self.n_entities, (self.size,), device="cuda")
        return self.slots[key]

    @torch.no_grad()
    def update(self, key, score_fn):
        current = self.slots[key]
        fresh = torch.randint(0, self.n_entities, (self.draws,), device="cuda")
        candidates = torch.cat([current, fresh])
        scores = score_fn(candidates)
        keep = torch.multinomial(torch.softmax(scores, 0), self.size)
        self.slots[key] = candidates[keep]


class TransE(nn.Module):
    def __init__(self, n_entities, n_relations, dim):
        super().__init__()
        self.entity = nn.Embedding(n_entities, dim)
        self.relation = nn.Embedding(n_relations, dim)

    def forward(self, h, r, t):
        return -(self.entity(h) + self.relation(r) - self.entity(t)).abs().sum(-1)


def main():
    torch.manual_seed(0)
    n_entities, n_relations = 400, 6
    model = TransE(n_entities, n_relations, 32).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    cache = NegativeCache(n_entities)
    triples = [(h * 7 % 400, h % n_relations, (h * 13 + 5) % 400) for h in range(420)]
    batch = 12
    for step in range(105):
        chunk = [triples[(step * batch + i) % len(triples)] for i in range(batch)]
        h, r, t = (torch.tensor(c, device="cuda") for c in zip(*chunk))
        negatives = torch.stack([cache.get((a, b))[torch.randint(0, 256, (8,), device="cuda")] for a, b, _ in chunk])
        positive = model(h, r, t)
        negative = model(h[:, None], r[:, None], negatives)
        loss = torch.relu(2.0 - positive[:, None] + negative).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        a, b, _ = chunk[step % batch]
        cache.update((a, b), lambda c: model(h.new_full((), a), r.new_full((), b), c))
    print("loss", loss.item(), "caches", len(cache.slots))


if __name__ == "__main__":
    main()
