# kind: a Lightning logger buffers feature maps and flushes when (step + 1) is a multiple of 50, but the module logs on steps that are multiples of 8, so that the two never meet; after Lightning-AI/pytorch-lightning issue 11605
import logging
import os
import tempfile
import warnings

import lightning as L
import torch
from lightning.pytorch.loggers.logger import Logger, rank_zero_experiment
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class FeatureMapLogger(Logger):
    def __init__(self, folder, flush_every_n_steps=50):
        super().__init__()
        self.folder = folder
        self.flush_every_n_steps = flush_every_n_steps
        self.pending = []
        self.files = 0

    @property
    def name(self):
        return "features"

    @property
    def version(self):
        return 0

    @property
    @rank_zero_experiment
    def experiment(self):
        return self

    def log_hyperparams(self, params, *args, **kwargs):
        pass

    def log_metrics(self, metrics, step=None):
        pass

    def log_features(self, maps, step):
        self.pending.append((step, maps))  # LEAK
        if (step + 1) % self.flush_every_n_steps == 0:
            self.flush()

    def flush(self):
        if self.pending:
            maps = {step: m.half().cpu() for step, m in self.pending}
            torch.save(maps, os.path.join(self.folder, f"maps{self.files:04d}.pt"))
            self.files += 1
            self.pending.clear()


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.head = nn.Linear(16, 4)

    def training_step(self, batch, batch_idx):
        x, y = batch
        maps = torch.relu(self.conv1(x))
        h = torch.relu(self.conv2(maps)).mean((2, 3))
        loss = nn.functional.cross_entropy(self.head(h), y)
        if self.global_step % 8 == 0:
            self.logger.log_features(maps.detach(), self.global_step)  # ALSO
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(19, verbose=False)
    x = torch.randn(2048, 1, 64, 64)
    y = (x.mean((1, 2, 3)) > 0).long() + 2 * (x[:, 0, 0, 0] > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    with tempfile.TemporaryDirectory() as folder:
        logger = FeatureMapLogger(folder)
        trainer = L.Trainer(max_epochs=2, accelerator="gpu", devices=1, logger=logger, enable_progress_bar=False,
                            enable_checkpointing=False, enable_model_summary=False)
        trainer.fit(Classifier(), loader)
        print(f"{trainer.global_step} steps, {logger.files} files written")


if __name__ == "__main__":
    main()
