# CARD: 31.75GiB
# KNOBS: NO_GRAD USER_CHUNK=0 USERS=28872629 BATCH=2048 EMBED=16 AUTOCAST OPT
# EXPERT: training is tiny; after the epoch the vectors of all 29 million users are computed in one forward pass: the input alone is 28872629 x 80 floats (8.6 GiB) and the first layer's output 27.5 GiB; users in chunks, and without gradients, since otherwise every chunk's activations stay for a backward pass that never comes: it takes both (NO_GRAD and USER_CHUNK=1000000); fewer users or a smaller embedding; batch size and optimizer do not matter
# after massquantity/LibRecommender issue 74 (https://github.com/massquantity/LibRecommender/issues/74), _set_latent_vectors of YoutubeMatch on a 32 GB card, rebuilt in PyTorch
import os
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

USERS = int(os.environ.get("USERS", 28872629))
USER_CHUNK = int(os.environ.get("USER_CHUNK", 0))
BATCH = int(os.environ.get("BATCH", 2048))
EMBED = int(os.environ.get("EMBED", 16))


@dataclass
class DataInfo:
    n_users: int
    n_items: int
    cardinalities: tuple = (3, 8, 22, 3500, 120)

    def __post_init__(self):
        self.user_sparse_unique = torch.empty(self.n_users, len(self.cardinalities), dtype=torch.long, device="cuda")
        for k, c in enumerate(self.cardinalities):
            self.user_sparse_unique[:, k].random_(0, c)

    def batch(self, n):
        users = torch.randint(0, self.n_users, (n,), device="cuda")
        return users, torch.randint(0, self.n_items, (n,), device="cuda")


class UserTower(nn.Module):
    def __init__(self, info, hidden_units=(256, 128)):
        super().__init__()
        self.features = nn.ModuleList([nn.Embedding(c, EMBED) for c in info.cardinalities])
        sizes = [EMBED * len(info.cardinalities), *hidden_units]
        layers = []
        for a, b in zip(sizes, sizes[1:]):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(sizes[-1], EMBED))

    def forward(self, sparse):
        x = torch.cat([emb(sparse[:, k]) for k, emb in enumerate(self.features)], dim=1)
        return self.mlp(x)


class YoutubeMatch:
    def __init__(self, info, lr=1e-3):
        self.info = info
        self.tower = knobs.apply(UserTower(info).cuda())
        self.items = nn.Embedding(info.n_items, EMBED).cuda()
        self.opt = torch.optim.Adam(list(self.tower.parameters()) + list(self.items.parameters()), lr=lr)
        self.user_vector = self.item_weights = None

    def _train_step(self):
        users, items = self.info.batch(BATCH)
        user = self.tower(self.info.user_sparse_unique[users])
        logits = user @ self.items(items).t()
        loss = F.cross_entropy(logits, torch.arange(len(users), device=logits.device))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def _user_vectors(self):
        chunk = USER_CHUNK or self.info.n_users
        parts = []
        for start in range(0, self.info.n_users, chunk):
            with knobs.autocast():
                parts.append(self.tower(self.info.user_sparse_unique[start:start + chunk]).float())
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _set_latent_vectors(self):
        self.user_vector = knobs.no_grad(self._user_vectors)().detach()
        self.item_weights = self.items.weight.detach()

    def fit(self, n_epochs=1, steps=3):
        for epoch in range(n_epochs):
            for step in range(steps):
                with knobs.autocast():
                    loss = self._train_step()
                print(f"epoch {epoch} step {step} loss {loss:.4f}")
            print("training peak MiB", torch.cuda.max_memory_allocated() // 2 ** 20)
            self._set_latent_vectors()
            print("precision at 10 of a sample of users", self.evaluate())

    def recommend_user(self, users, n_rec=10):
        scores = self.user_vector[users] @ self.item_weights.t()
        return scores.topk(n_rec, dim=1).indices

    def evaluate(self, sample=500):
        users, items = self.info.batch(sample)
        return (self.recommend_user(users) == items[:, None]).any(1).float().mean().item()


def main():
    info = DataInfo(n_users=USERS, n_items=120000)
    YoutubeMatch(info).fit()
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
