# kind: embeddings with sparse=True have an optimizer of their own (SparseAdam) and only the dense optimizer's gradients are set to None, a sparse gradient does not add up in place but gets the entries of each new batch strung to its end; after questions on SparseAdam beside Adam (pytorch/pytorch issues 18404 and 101370) and raberrytv.wordpress.com "PyTorch - Combining Dense And Sparse Gradients"
"""Two towers for recommendation, embeddings with sparse gradients.

https://github.com/pytorch/pytorch/issues/18404 (a separate optimizer for sparse layers),
https://raberrytv.wordpress.com/ (Combining Dense And Sparse Gradients)
"""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Tower(nn.Module):
    def __init__(self, rows, dim, hidden):
        super().__init__()
        self.table = nn.Embedding(rows, dim, sparse=True)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        nn.init.normal_(self.table.weight, std=0.05)

    def forward(self, ids):
        return F.normalize(self.mlp(self.table(ids)), dim=-1)


class TwoTowers(nn.Module):
    def __init__(self, users, items, dim=32, hidden=64):
        super().__init__()
        self.users, self.items = Tower(users, dim, hidden), Tower(items, dim, hidden)
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, user_ids, item_ids):
        return self.scale * self.users(user_ids) @ self.items(item_ids).t()


class Interactions:
    def __init__(self, users, items, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        self.users, self.items = users, items
        self.popular = 1.0 / torch.arange(1, items + 1).float()

    def batch(self, size):
        u = torch.randint(0, self.users, (size,), generator=self.g)
        i = torch.multinomial(self.popular, size, replacement=True, generator=self.g)
        return u.cuda(), i.cuda()


class Trainer:
    def __init__(self, model, lr):
        sparse, dense = [], []
        for module in model.modules():
            target = sparse if isinstance(module, nn.Embedding) and module.sparse else dense
            target.extend(module.parameters(recurse=False))
        self.model = model
        self.optimizer = torch.optim.AdamW(dense, lr=lr)
        self.embedding_optimizer = torch.optim.SparseAdam(sparse, lr=10 * lr)

    def step(self, users, items):
        self.optimizer.zero_grad()  # ALSO
        logits = self.model(users, items)
        targets = torch.arange(len(users), device=logits.device)
        loss = F.cross_entropy(logits, targets)
        loss.backward()  # LEAK
        self.optimizer.step()
        self.embedding_optimizer.step()  # ALSO
        return loss


def recall(model, data, k=20, size=256):
    model.eval()
    with torch.no_grad():
        users, items = data.batch(size)
        top = model(users, items).topk(k, dim=1).indices
        hits = (top == torch.arange(size, device=top.device)[:, None]).any(1).float().mean().item()
    model.train()
    return hits


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--batch", type=int, default=512)
    args = parser.parse_args()
    torch.manual_seed(0)
    data = Interactions(users=20_000, items=5_000)
    model = TwoTowers(data.users, data.items).cuda()
    trainer = Trainer(model, lr=1e-3)
    for i in range(args.steps):
        loss = trainer.step(*data.batch(args.batch))
        if i % 30 == 29:
            print(f"step {i + 1}: loss {loss.item():.3f}, recall@20 {recall(model, data):.3f}")


if __name__ == "__main__":
    main()
