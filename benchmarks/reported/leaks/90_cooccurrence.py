# kind: sparse co-occurrence counts are added batch after batch and never coalesced, so that the tensor's entries are only strung together; from pytorch/pytorch PR 36030 / issue 34964 (unbounded growth of sparse tensor in add)
import torch
from torch import nn

torch.sparse.check_sparse_tensor_invariants.disable()

ITEMS = 30_000
DIM = 16


class ItemModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(5000, DIM, mode="mean")
        self.head = nn.Linear(DIM, 1)

    def forward(self, ids):
        return self.head(self.table(ids % 5000)).squeeze(-1)


class CoCounter:
    def __init__(self, n, device):
        self.n = n
        empty = torch.zeros(2, 0, dtype=torch.long, device=device)
        self.counts = torch.sparse_coo_tensor(empty, torch.zeros(0, device=device), (n, n))

    def add_sessions(self, sessions):
        left = sessions[:, :-1].reshape(-1)
        right = sessions[:, 1:].reshape(-1)
        ones = torch.ones(left.numel(), device=sessions.device)
        update = torch.sparse_coo_tensor(torch.stack([left, right]), ones, (self.n, self.n))
        self.counts = self.counts + update  # LEAK

    def top(self, k):
        merged = self.counts.coalesce()
        return merged.values().sort(descending=True).values[:k].tolist()


def sessions(steps):
    g = torch.Generator().manual_seed(0)
    for _ in range(steps):
        start = torch.randint(0, ITEMS // 20, (64, 1), generator=g) * 20
        hops = torch.randint(0, 3, (64, 48), generator=g).cumsum(-1)
        yield (start + hops) % ITEMS


def main():
    torch.manual_seed(0)
    model = ItemModel().cuda()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.1)
    counter = CoCounter(ITEMS, "cuda")
    for step, ids in enumerate(sessions(220)):
        ids = ids.cuda()
        counter.add_sessions(ids)
        target = (ids[:, -1] % 2).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids[:, :-1]), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 99:
            counter.top(10)


if __name__ == "__main__":
    main()
