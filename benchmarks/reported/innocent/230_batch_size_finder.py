# kind: Lightning's tuner tries larger and larger batches for a few steps each, restores the weights and trains with the size that it found, gradients are accumulated over fewer batches later; from Lightning-AI/pytorch-lightning issues on scale_batch_size (memory rises during the search) and GradientAccumulationScheduler
import logging
import tempfile
import warnings

import lightning as L
import torch
import torch.nn as nn
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader, Dataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


class Spectra(Dataset):
    def __init__(self, n, points=256, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.rand(n, 3, generator=g)
        axis = torch.linspace(0, 1, points)
        peaks = torch.exp(-((axis - self.y[..., None]) ** 2) / 0.001).sum(1)
        self.x = peaks + 0.05 * torch.randn(n, points, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i].sort().values


class SpectraModule(L.LightningDataModule):
    def __init__(self, batch_size=4, n=1536):
        super().__init__()
        self.batch_size = batch_size
        self.data = Spectra(n)

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=self.batch_size, shuffle=True, drop_last=True)


class PeakFinder(L.LightningModule):
    def __init__(self, width=24, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Conv1d(1, width, 9, padding=4), nn.GELU(), nn.Conv1d(width, width, 9, padding=4), nn.GELU(),
            nn.AvgPool1d(8), nn.Flatten(), nn.Linear(32 * width, 128), nn.GELU(), nn.Linear(128, 3))
        self.last = None

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x[:, None]), y)
        self.last = loss.item()
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Report(Callback):
    def on_train_epoch_end(self, trainer, module):
        size = trainer.train_dataloader.batch_size
        print(f"epoch {trainer.current_epoch}: batches of {size}, loss {module.last:.4f}")


class LargestTried:
    """The machine is shared, so that the search stops at a size and not when memory runs out."""

    def __init__(self, trainer, trials):
        self.tuner, self.trials = Tuner(trainer), trials

    def __call__(self, module, data):
        return self.tuner.scale_batch_size(
            module, datamodule=data, mode="power", init_val=4, steps_per_trial=4, max_trials=self.trials)


def main():
    L.seed_everything(0, verbose=False)
    data, module = SpectraModule(), PeakFinder()
    with tempfile.TemporaryDirectory() as root:
        def trainer(epochs, callbacks):
            return L.Trainer(
                max_epochs=epochs, accelerator="gpu", devices=1, logger=False, default_root_dir=root, callbacks=callbacks,
                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)

        found = LargestTried(trainer(1, []), trials=5)(module, data)
        print("batch size", found)
        data.batch_size = found // 2
        trainer(4, [GradientAccumulationScheduler({0: 4, 1: 2, 2: 1}), Report()]).fit(module, datamodule=data)


if __name__ == "__main__":
    main()
