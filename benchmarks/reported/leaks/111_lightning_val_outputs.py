# kind: LightningModule appends validation outputs and never clears the list at epoch end; from Lightning-AI/pytorch-lightning pull request 16520, ray-project/ray pull request 38039
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitSegmenter(L.LightningModule):
    def __init__(self, classes=6, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1),
                                 nn.ReLU(), nn.Conv2d(12, classes, 1))
        self.validation_step_outputs = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        pass

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.validation_step_outputs.append({"val_loss": loss, "logits": logits, "target": y})  # LEAK
        return loss

    def on_validation_epoch_end(self):
        avg_loss = torch.stack([o["val_loss"] for o in self.validation_step_outputs]).mean()  # ALSO
        hits = [(o["logits"].argmax(1) == o["target"]).float().mean() for o in self.validation_step_outputs]
        self.last_metrics = (avg_loss.item(), torch.stack(hits).mean().item())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class ShapesData(L.LightningDataModule):
    def __init__(self, n_train=80, n_val=80, batch_size=8):
        super().__init__()
        self.n_train, self.n_val, self.batch_size = n_train, n_val, batch_size

    def _make(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        x = torch.rand(n, 3, 24, 24, generator=gen)
        y = (x.mean(1) * 6).long().clamp(0, 5)
        return TensorDataset(x, y)

    def train_dataloader(self):
        return DataLoader(self._make(self.n_train, 0), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self._make(self.n_val, 1), batch_size=self.batch_size)


def main():
    L.seed_everything(0, verbose=False)
    model = LitSegmenter()
    trainer = L.Trainer(max_epochs=10, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
    trainer.fit(model, datamodule=ShapesData())
    print("val loss %.4f pixel acc %.4f" % model.last_metrics)


if __name__ == "__main__":
    main()
