# kind: Lightning's StochasticWeightAveraging with the averaged model on the GPU comes in at half of the epochs, a callback collects embeddings per class during an epoch for the distances between classes and begins a new atlas with the next one; after Lightning-AI/pytorch-lightning issues 9441 and 9752 (SWA callback takes more memory)
"""Fault classes of bearings, with stochastic weight averaging.

https://github.com/Lightning-AI/pytorch-lightning/issues/9441 (SWA callback triggers OOM on train end),
https://github.com/Lightning-AI/pytorch-lightning/issues/9752
"""
import logging
import tempfile
import warnings
from collections import defaultdict

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, StochasticWeightAveraging
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
    logging.getLogger(name).setLevel(logging.ERROR)


class BearingNet(L.LightningModule):
    def __init__(self, classes=6, width=96):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, width, 16, stride=8), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 8, stride=4), nn.BatchNorm1d(width), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten())
        self.head = nn.Linear(4 * width, classes)

    def training_step(self, batch, batch_idx):
        x, y = batch
        z = self.body(x[:, None])
        loss = F.cross_entropy(self.head(z), y, label_smoothing=0.05)
        return {"loss": loss, "embedding": z.detach(), "label": y}

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(opt, 12)}


class ClassAtlas(Callback):
    """How far apart the classes are in the embeddings of an epoch."""

    def __init__(self):
        self.by_class = None

    def on_train_epoch_start(self, trainer, module):
        self.by_class = defaultdict(list)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        order = batch[1].cpu()
        for c in order.unique().tolist():
            rows = (order == c).nonzero()[:, 0].to(module.device)
            self.by_class[c].append(outputs["embedding"].index_select(0, rows))

    def on_train_epoch_end(self, trainer, module):
        if not self.by_class:
            return
        means = torch.stack([torch.cat(parts).mean(0) for _, parts in sorted(self.by_class.items())])
        print(f"epoch {trainer.current_epoch}: mean distance of classes {torch.pdist(means).mean().item():.3f}")


def recordings(n, classes=6, points=1024):
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, classes, (n,), generator=g)
    t = torch.arange(points) / points
    knocks = torch.sin(2 * torch.pi * (20 + 15 * y[:, None]) * t).clamp(min=0.7)
    return TensorDataset(knocks + 0.1 * torch.randn(n, points, generator=g), y)


def main():
    L.seed_everything(0, verbose=False)
    loader = DataLoader(recordings(1536), batch_size=64, shuffle=True)
    swa = StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=0.5, annealing_epochs=3, device=None)
    with tempfile.TemporaryDirectory() as root:
        trainer = L.Trainer(
            max_epochs=10, accelerator="gpu", devices=1, logger=False, default_root_dir=root, callbacks=[swa, ClassAtlas()],
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
        trainer.fit(BearingNet(), loader)


if __name__ == "__main__":
    main()
