# kind: https://github.com/Lightning-AI/pytorch-lightning/pull/16520: a LightningModule keeps each epoch's validation predictions for a plot at the end
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Forecaster(L.LightningModule):
    def __init__(self, features=8, hidden=64, horizon=96):
        super().__init__()
        self.rnn = nn.GRU(features, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, horizon * 4)
        self.horizon = horizon
        self.batches = []
        self.curves = {}

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1]).view(-1, 4, self.horizon)

    def training_step(self, batch, _):
        x, y = batch
        loss = F.smooth_l1_loss(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        pred = self(x)
        self.log("val_loss", F.l1_loss(pred, y))
        self.batches.append((pred, y))

    def on_validation_epoch_end(self):
        pred = torch.cat([p for p, _ in self.batches])
        truth = torch.cat([t for _, t in self.batches])
        self.batches.clear()
        band = torch.quantile((pred - truth).abs(), 0.9, dim=0)
        self.curves[self.current_epoch] = {"forecast": pred, "band": band}  # LEAK
        if self.current_epoch % 5 == 0:
            print(f"epoch {self.current_epoch}: {torch.cuda.memory_allocated() / 2**20:.2f} MiB")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def dataset(n):
    return TensorDataset(torch.randn(n, 48, 8), torch.randn(n, 4, 96))


def main():
    L.seed_everything(1, verbose=False)
    train = DataLoader(dataset(256), batch_size=64, shuffle=True)
    val = DataLoader(dataset(384), batch_size=128)
    trainer = L.Trainer(
        max_epochs=40, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )
    model = Forecaster()
    trainer.fit(model, train, val)
    print("epochs to plot:", len(model.curves))


if __name__ == "__main__":
    main()
