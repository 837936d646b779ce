# kind: Lightning-AI/torchmetrics issue #3294, done right: the metric keeps all of an epoch and is reset by self.log at its end
import logging
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MultilabelAveragePrecision
import lightning as L

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Tagger(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 16))
        self.train_ap = MultilabelAveragePrecision(num_labels=16, thresholds=None)
        self.val_ap = MultilabelAveragePrecision(num_labels=16, thresholds=None)
        self.validation_step_outputs = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        self.train_ap(logits.detach().sigmoid(), y)
        self.log("train_ap", self.train_ap, on_step=False, on_epoch=True)
        return F.binary_cross_entropy_with_logits(logits, y.float())

    def validation_step(self, batch, batch_idx):
        x, y = batch
        probs = self.net(x).sigmoid()
        self.val_ap.update(probs, y)
        self.validation_step_outputs.append(probs)

    def on_validation_epoch_end(self):
        probs = torch.cat(self.validation_step_outputs)
        self.log("mean", probs.mean())
        self.log("val_ap", self.val_ap.compute())
        self.val_ap.reset()
        self.validation_step_outputs.clear()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    def loader(batches):
        n = 512 * batches
        return DataLoader(TensorDataset(torch.randn(n, 256), torch.randint(0, 2, (n, 16))), batch_size=512)
    trainer = L.Trainer(max_epochs=3, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Tagger(), loader(50), loader(40))
