# kind: sparse counts of word transitions are added up, every 25 updates the sum is folded into a dense table and begun anew; from pytorch/pytorch PR 36030 / issue 34964 (sparse add strings entries together) and PR 1366 ("coalesce to prevent them from growing too large")
import torch
from torch import nn

torch.sparse.check_sparse_tensor_invariants.disable()

WORDS = 1500


class Transitions:
    def __init__(self, fold_every=25):
        self.fold_every = fold_every
        self.table = None
        self.recent = None
        self.updates = 0

    def add(self, ids):
        pair = torch.stack([ids[:, :-1].reshape(-1), ids[:, 1:].reshape(-1)])
        one = torch.ones(pair.shape[1], device=ids.device)
        fresh = torch.sparse_coo_tensor(pair, one, (WORDS, WORDS))
        self.recent = fresh if self.recent is None else self.recent + fresh
        self.updates += 1
        if self.updates % self.fold_every == 0:
            self.fold()

    def fold(self):
        dense = self.recent.to_dense()
        self.table = dense if self.table is None else self.table.add_(dense)
        self.recent = None


class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(WORDS, 48)
        self.out = nn.Linear(48, WORDS)

    def forward(self, ids):
        return self.out(self.emb(ids))


torch.manual_seed(0)
lm = Bigram().cuda()
opt = torch.optim.Adam(lm.parameters(), lr=2e-3)
transitions = Transitions()
gen = torch.Generator().manual_seed(3)
for step in range(200):
    ids = torch.randint(0, WORDS, (256, 33), generator=gen).cuda()
    transitions.add(ids)
    logits = lm(ids[:32, :8])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:32, 1:9].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
