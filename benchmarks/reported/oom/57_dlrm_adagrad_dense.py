# CARD: 24GiB
# KNOBS: BATCH=2048 SPARSE OPTIMIZER=adagrad DIM=64 MAX_IND_RANGE AUTOCAST DTYPE=bf16
# EXPERT: 34 M rows x 64 of embedding tables are 8 GiB, and exist as weights, Adagrad's sums, dense gradients although a batch touches a few thousand rows, and temporaries in the step; sparse gradients (SPARSE=1), SGD without state, 32 columns, hashing to a million rows per table, or tables in bf16; a smaller batch (128) or autocast is not enough
# Source: facebookresearch/dlrm 15 (Adagrad needs the entire embedding to be updated and 'more memory than expected' without sparse gradients), dmlc/dgl 1676 (the embedding matrix of the items does not fit into the GPU); written by hand
import argparse
import os
import time

import numpy as np
import torch
import torch.nn as nn

import knobs

p = argparse.ArgumentParser(description="click-through rate: dense features and categorical tables")
p.add_argument("--mini-batch-size", type=int, default=int(os.environ.get("BATCH", 2048)))
p.add_argument("--arch-sparse-feature-size", type=int, default=int(os.environ.get("DIM", 64)))
p.add_argument("--arch-embedding-size", default="1460-583-10131227-2202608-305-24-12517-633-3-93145-5683-8351593-3194-27-14992-5461306-10-5652-2173-4-7046547-18-15-286181-105-142572")
p.add_argument("--max-ind-range", type=int, default=int(os.environ.get("MAX_IND_RANGE", -1)), help="hash the ids into so many rows")
p.add_argument("--sparse", action="store_true", default=os.environ.get("SPARSE", "0") == "1")
p.add_argument("--optimizer", default=os.environ.get("OPTIMIZER", "adagrad"), choices=["sgd", "adagrad"])
p.add_argument("--learning-rate", type=float, default=0.01)
p.add_argument("--lookups", type=int, default=4)
p.add_argument("--num-batches", type=int, default=3)
args = p.parse_args()

D = args.arch_sparse_feature_size
rows = np.array(args.arch_embedding_size.split("-"), dtype=int)
if args.max_ind_range > 0:
    rows = np.minimum(rows, args.max_ind_range)


def mlp(sizes, last=None):
    layers = []
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        layers += [nn.Linear(a, b), last if last is not None and i == len(sizes) - 2 else nn.ReLU()]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb_l = nn.ModuleList(nn.EmbeddingBag(int(n), D, mode="sum", sparse=args.sparse) for n in rows)
        f = len(rows) + 1
        self.bot_l = mlp([13, 512, 256, D])
        self.top_l = mlp([D + f * (f - 1) // 2, 512, 256, 1], nn.Sigmoid())
        self.register_buffer("tri", torch.tensor([[i, j] for i in range(f) for j in range(i)]).T.contiguous(), persistent=False)

    def forward(self, dense, offsets, indices):
        x = self.bot_l(dense)
        ly = [e(i, o) for e, i, o in zip(self.emb_l, indices, offsets)]
        t = torch.stack([x] + [v.to(x.dtype) for v in ly], dim=1)
        z = torch.bmm(t, t.transpose(1, 2))
        return self.top_l(torch.cat([x, z[:, self.tri[0], self.tri[1]]], dim=1))


with torch.device("cuda"):
    dlrm = DLRM()
dlrm = knobs.apply(dlrm)
print(f"{sum(q.numel() for q in dlrm.parameters()) / 1e6:.0f}M parameters in {len(rows)} tables")
loss_fn = nn.BCELoss()
opts = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}
optimizer = opts[args.optimizer](dlrm.parameters(), lr=args.learning_rate)

g = torch.Generator().manual_seed(123)
B = args.mini_batch_size
for j in range(args.num_batches):
    t1 = time.time()
    X = torch.rand(B, 13, generator=g).cuda().to(knobs.dtype())
    lS_i = [torch.randint(0, int(n), (B * args.lookups,), generator=g).cuda() for n in rows]
    lS_o = [torch.arange(0, B * args.lookups, args.lookups).cuda() for _ in rows]
    T = torch.randint(0, 2, (B, 1), generator=g).float().cuda()
    with knobs.autocast():
        Z = dlrm(X, lS_o, lS_i)
    E = loss_fn(Z.float(), T)
    optimizer.zero_grad()
    E.backward()
    optimizer.step()
    print(f"iteration {j}: loss {E.item():.5f} {1000 * (time.time() - t1):.0f} ms")
