# kind: profiles of card holders are in a defaultdict that makes an empty one on the GPU, scoring only looks a card up, but the look-up of a card that was never seen enters it, and most cards come once; after nltk/nltk PR 2047, snowflakedb/snowflake-connector-python issue 2727 and opensteno/plover PR 1188
import random
from collections import defaultdict
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F

MERCHANTS, DIM = 64, 48


class Profiles:
    """Decayed sum of embedded purchases per card and kind of merchant."""

    def __init__(self, decay=0.9):
        self.decay = decay
        self.table = defaultdict(partial(torch.zeros, MERCHANTS, DIM, device="cuda"))  # ALSO

    def lookup(self, cards):
        return torch.stack([self.table[c] for c in cards])  # LEAK

    def learn(self, card, merchant, vector):
        old = self.table[card]
        new = old * self.decay
        new[merchant] += vector
        self.table[card] = new


class FraudScorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.merchant = nn.Embedding(MERCHANTS, DIM)
        self.amount = nn.Linear(1, DIM)
        self.head = nn.Sequential(nn.Linear(2 * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def encode(self, merchants, amounts):
        return self.merchant(merchants) + self.amount(amounts[:, None])

    def forward(self, purchase, profile):
        weight = torch.einsum("bmd,bd->bm", profile, purchase).softmax(-1)
        past = torch.einsum("bm,bmd->bd", weight, profile)
        return self.head(torch.cat([purchase, past], -1))[:, 0]


class Stream:
    """Some regulars, many travellers who pay once at the airport."""

    def __init__(self, regulars=24, seed=1):
        self.rng = random.Random(seed)
        self.regulars = [f"r{i}" for i in range(regulars)]

    def batch(self, size):
        rows = []
        for _ in range(size):
            regular = self.rng.random() < 0.2
            card = self.rng.choice(self.regulars) if regular else f"t{self.rng.getrandbits(40):x}"
            fraud = float(self.rng.random() < 0.05)
            rows.append((card, self.rng.randrange(MERCHANTS), self.rng.lognormvariate(0, 1), fraud))
        return rows


class Service:
    def __init__(self):
        self.model = FraudScorer().cuda()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.profiles = Profiles()
        self.known = set()

    def enrol(self, cards):
        self.known.update(c for c in cards if c.startswith("r"))

    def handle(self, rows):
        cards, merchants, amounts, fraud = zip(*rows)
        m, a, y = torch.tensor(merchants).cuda(), torch.tensor(amounts).cuda(), torch.tensor(fraud).cuda()
        purchase = self.model.encode(m, a)
        score = self.model(purchase, self.profiles.lookup(cards))
        loss = F.binary_cross_entropy_with_logits(score, y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        for card, merchant, vector in zip(cards, merchants, purchase.detach()):
            if card in self.known:
                self.profiles.learn(card, merchant, vector)
        return loss.item()


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    service, stream = Service(), Stream()
    service.enrol(stream.regulars)
    for i in range(75):
        loss = service.handle(stream.batch(96))
        if i % 15 == 0:
            print(f"batch {i}: loss {loss:.3f}, {len(service.known)} known cards")
