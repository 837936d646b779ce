# kind: a recommender is retrained on day after day of interactions, user and item tables are rebuilt with rows for whoever is new together with the optimizer, the catalogue and the club's members are finite and all known after some days; after massquantity/LibRecommender issue 520
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F

MEMBERS, CATALOGUE, DIM = 5000, 1800, 32


@dataclass
class DataInfo:
    users: dict = field(default_factory=dict)
    items: dict = field(default_factory=dict)

    def merge(self, users, items):
        u = torch.tensor([self.users.setdefault(k, len(self.users)) for k in users])
        i = torch.tensor([self.items.setdefault(k, len(self.items)) for k in items])
        return u, i


class TwoTower(nn.Module):
    def __init__(self, n_users, n_items):
        super().__init__()
        self.user = nn.Embedding(n_users, DIM)
        self.item = nn.Embedding(n_items, DIM)
        nn.init.normal_(self.user.weight, std=0.05)
        nn.init.normal_(self.item.weight, std=0.05)

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).sum(1)

    def warm_start(self, old):
        with torch.no_grad():
            self.user.weight[:old.user.num_embeddings] = old.user.weight
            self.item.weight[:old.item.num_embeddings] = old.item.weight
        return self


class Club:
    """Members come back with a probability that falls with their number."""

    def __init__(self, seed=4):
        self.g = torch.Generator().manual_seed(seed)
        self.reach = 400

    def day(self, n=900):
        self.reach = min(MEMBERS, int(self.reach * 1.12) + 100)
        users = torch.randint(0, self.reach, (n,), generator=self.g)
        fresh = torch.arange(max(0, self.reach - 300), self.reach)
        users = torch.cat([users, fresh])
        items = torch.randint(0, min(CATALOGUE, self.reach), (len(users),), generator=self.g)
        return users.tolist(), items.tolist()


class IncrementalTrainer:
    def __init__(self):
        self.info = DataInfo()
        self.model = self.opt = None

    def rebuild(self):
        new = TwoTower(len(self.info.users), len(self.info.items)).cuda()
        if self.model is not None:
            new.warm_start(self.model)
        self.model = new
        self.opt = torch.optim.Adam(new.parameters(), lr=1e-2)

    def fit(self, users, items, batch=512):
        known = (len(self.info.users), len(self.info.items))
        u, i = self.info.merge(users, items)
        if known != (len(self.info.users), len(self.info.items)):
            self.rebuild()
        total = 0.0
        for k in range(0, len(u), batch):
            ub, ib = u[k:k + batch].cuda(), i[k:k + batch].cuda()
            neg = torch.randint(0, self.model.item.num_embeddings, ib.shape, device="cuda")
            loss = F.softplus(self.model(ub, neg) - self.model(ub, ib)).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += loss.item()
        return total


def main():
    torch.manual_seed(0)
    club, trainer = Club(), IncrementalTrainer()
    for day in range(66):
        loss = trainer.fit(*club.day())
        if day % 11 == 0:
            print(f"day {day}: {len(trainer.info.users)} users, {len(trainer.info.items)} items, loss {loss:.3f}")


if __name__ == "__main__":
    main()
