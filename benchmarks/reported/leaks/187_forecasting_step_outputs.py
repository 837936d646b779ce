# kind: the log dict of each batch with the prediction (and its graph) is appended to training_step_outputs during the whole epoch; after sktime/pytorch-forecasting PR 1924
import logging
import warnings

import torch
import torch.nn as nn
import pytorch_lightning as pl
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class TimeSeriesDataSet(Dataset):
    def __init__(self, n, encoder_length=30, prediction_length=30):
        self.n, self.enc, self.dec = n, encoder_length, prediction_length

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        series = torch.sin(torch.arange(self.enc + self.dec) * 0.1 + i)
        return series[: self.enc], series[self.enc:]


class QuantileLoss(nn.Module):
    def __init__(self, quantiles=(0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)):
        super().__init__()
        self.quantiles = quantiles

    def forward(self, y_pred, target):
        losses = []
        for i, q in enumerate(self.quantiles):
            errors = target - y_pred[..., i]
            losses.append(torch.max((q - 1) * errors, q * errors).unsqueeze(-1))
        return torch.cat(losses, dim=2).mean()


class BaseModel(pl.LightningModule):
    def __init__(self, learning_rate=1e-3):
        super().__init__()
        self.learning_rate = learning_rate
        self.loss = QuantileLoss()
        self.training_step_outputs = []
        self.validation_step_outputs = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        log, out = self.step(x, y, batch_idx)
        self.training_step_outputs.append(log)  # LEAK
        return log

    def step(self, x, y, batch_idx):
        out = self(x)
        loss = self.loss(out["prediction"], y)
        self.log("train_loss", loss)
        return {"loss": loss, "prediction": out["prediction"], "target": y}, out

    def on_train_epoch_end(self):
        self.epoch_end(self.training_step_outputs)
        self.training_step_outputs.clear()

    def epoch_end(self, outputs):
        mae = torch.stack([(o["prediction"][..., 3] - o["target"]).abs().mean() for o in outputs]).mean()
        print("epoch MAE", mae.item())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


class FullyConnectedModel(BaseModel):
    def __init__(self, input_size=30, output_size=30, hidden=128, n_quantiles=7):
        super().__init__()
        self.output_size, self.n_quantiles = output_size, n_quantiles
        self.network = nn.Sequential(
            nn.Linear(input_size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, output_size * n_quantiles))

    def forward(self, x):
        out = self.network(x)
        return {"prediction": out.view(-1, self.output_size, self.n_quantiles)}


def main():
    pl.seed_everything(42)
    loader = DataLoader(TimeSeriesDataSet(512 * 100), batch_size=512, shuffle=True)
    trainer = pl.Trainer(accelerator="gpu", devices=1, max_epochs=1, logger=False,
                         enable_checkpointing=False, enable_progress_bar=False,
                         enable_model_summary=False)
    trainer.fit(FullyConnectedModel(), loader)


if __name__ == "__main__":
    main()
