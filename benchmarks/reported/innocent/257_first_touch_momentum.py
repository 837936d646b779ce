# kind: innocent, row-wise optimizer allocates the state of an embedding block when the block is first touched, all 96 blocks are touched in the end; own, in the manner of sparse/row-wise Adagrad in recommender code
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class LazyBlockAdagrad:
    """Adagrad with momentum for a big table, state by blocks of rows."""

    def __init__(self, weight, block_rows, lr=0.05, eps=1e-8):
        self.weight, self.block_rows = weight, block_rows
        self.lr, self.eps = lr, eps
        self.state = {}

    def _state(self, block):
        if block not in self.state:
            shape = (self.block_rows, self.weight.size(1))
            self.state[block] = {
                "sum": torch.full(shape, 0.1, device=self.weight.device),
                "momentum": torch.zeros(shape, device=self.weight.device),
                "steps": 0,
            }
        return self.state[block]

    @torch.no_grad()
    def step(self, blocks):
        grad = self.weight.grad
        for block in blocks:
            lo = block * self.block_rows
            rows = slice(lo, lo + self.block_rows)
            s = self._state(block)
            g = grad[rows]
            s["steps"] += 1
            s["sum"].addcmul_(g, g)
            s["momentum"].mul_(0.9).add_(g)
            self.weight[rows].addcdiv_(s["momentum"], s["sum"].sqrt().add_(self.eps), value=-self.lr)
        self.weight.grad = None


class TwoTower(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.items = nn.Embedding(rows, dim)
        self.user = nn.Sequential(nn.Linear(16, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, user_features, item_ids):
        u = F.normalize(self.user(user_features), dim=-1)
        v = F.normalize(self.items(item_ids), dim=-1)
        return u @ v.t() / 0.1


def main(n_blocks=96, block_rows=256, dim=64, steps=220):
    rng = random.Random(0)
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = TwoTower(n_blocks * block_rows, dim).to(device)
    dense = torch.optim.Adam(model.user.parameters(), lr=1e-3)
    lazy = LazyBlockAdagrad(model.items.weight, block_rows)
    for step in range(steps):
        # new catalogue sections are opened one after the other
        opened = min(n_blocks, 1 + step)
        blocks = sorted({opened - 1} | {rng.randrange(opened) for _ in range(2)})
        ids = torch.tensor([b * block_rows + rng.randrange(block_rows) for b in blocks for _ in range(16)],
                           device=device)
        users = torch.randn(len(ids), 16, device=device)
        logits = model(users, ids)
        loss = F.cross_entropy(logits, torch.arange(len(ids), device=device))
        dense.zero_grad()
        loss.backward()
        dense.step()
        lazy.step(blocks)
        if step % 55 == 54:
            print(f"step {step + 1} loss {loss.item():.4f} blocks with state {len(lazy.state)}/{n_blocks}")


if __name__ == "__main__":
    main()
