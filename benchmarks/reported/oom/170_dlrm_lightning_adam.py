# CARD: 6GiB
# KNOBS: SPARSE=1 (sparse gradients, SparseAdam), FUSED=1, FOREACH=0, DTYPE=bf16, OPT=sgd, BATCH=<rows>
# EXPERT: the dense gradient and two Adam moments of one huge table: sparse=True with SparseAdam (or SGD / row-wise Adagrad); the batch does not matter
# from: https://github.com/mlcommons/algorithmic-efficiency/issues/505
import atexit
import logging
import os
import warnings

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
atexit.register(lambda: print("PEAK", torch.cuda.max_memory_allocated()))
SPARSE = os.environ.get("SPARSE") == "1"
BATCH = int(os.environ.get("BATCH", 16384))


class Criteo(Dataset):
    def __init__(self, rows, vocab):
        self.rows, self.vocab = rows, vocab

    def __len__(self):
        return self.rows

    def __getitems__(self, idx):
        n = len(idx)
        return [(torch.randn(n, 13), torch.randint(0, self.vocab, (n, 26)), torch.randint(0, 2, (n,)).float())]

    @staticmethod
    def collate(items):
        return items[0]


def mlp(*sizes):
    layers = []
    for i, o in zip(sizes, sizes[1:]):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class DLRM(L.LightningModule):
    def __init__(self, vocab=6_000_000, dim=64):
        super().__init__()
        self.automatic_optimization = False
        self.bottom = mlp(13, 512, 256, dim)
        # all 26 categorical features share one hashed table
        self.table = nn.Embedding(vocab, dim, sparse=SPARSE)
        self.top = mlp(dim + 27 * 26 // 2, 1024, 1024, 512, 256, 1)
        if os.environ.get("DTYPE") == "bf16":
            self.table.to(torch.bfloat16)

    def forward(self, dense, cats):
        d = self.bottom(dense)
        emb = self.table(cats).to(d.dtype)
        feats = torch.cat([d.unsqueeze(1), emb], 1)
        inter = torch.bmm(feats, feats.transpose(1, 2))
        i, j = torch.triu_indices(27, 27, 1, device=inter.device)
        return self.top(torch.cat([d, inter[:, i, j]], 1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        dense, cats, y = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self(dense, cats), y)
        opts = self.optimizers()
        opts = opts if isinstance(opts, list) else [opts]
        for o in opts:
            o.zero_grad()
        self.manual_backward(loss)
        for o in opts:
            o.step()
        print("step", batch_idx, float(loss.detach()))

    def configure_optimizers(self):
        if os.environ.get("OPT") == "sgd":
            return torch.optim.SGD(self.parameters(), lr=0.1)
        if SPARSE:
            rest = [p for n, p in self.named_parameters() if not n.startswith("table")]
            return [torch.optim.Adam(rest, lr=1e-3), torch.optim.SparseAdam(list(self.table.parameters()), lr=1e-3)]
        kw = {"fused": True} if os.environ.get("FUSED") == "1" else {}
        if os.environ.get("FOREACH") == "0":
            kw = {"foreach": False}
        return torch.optim.Adam(self.parameters(), lr=1e-3, **kw)


if __name__ == "__main__":
    model = DLRM()
    loader = DataLoader(Criteo(BATCH * 4, 6_000_000), batch_size=BATCH, collate_fn=Criteo.collate)
    trainer = L.Trainer(accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, loader)
