# kind: prediction writer of Lightning holds the feature maps of twenty batches on the GPU, writes them in one go and empties its buffer, return_predictions is off; from Lightning-AI/pytorch-lightning issues 6508 / 15656 (trainer.predict runs out of memory) and PR 7997
import io
import logging
import warnings

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


class Patches(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(4, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 1, 1))

    def predict_step(self, batch, batch_idx):
        (x,) = batch
        return {"index": batch_idx, "features": self.net(x)}


class ShardWriter(BasePredictionWriter):
    def __init__(self, per_shard):
        super().__init__("batch_and_epoch")
        self.per_shard = per_shard
        self.buffer = []
        self.bytes = 0

    def flush(self):
        if not self.buffer:
            return
        features = torch.cat([b["features"] for b in self.buffer]).half().cpu().numpy()
        sink = io.BytesIO()
        np.save(sink, features)
        self.bytes += sink.tell()
        self.buffer.clear()

    def write_on_batch_end(self, trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx):
        self.buffer.append(prediction)
        if len(self.buffer) == self.per_shard:
            self.flush()

    def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices):
        self.flush()


def main():
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.rand(1600, 4, 64, 64)), batch_size=8)
    trainer = Trainer(
        accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[ShardWriter(20)],
    )
    trainer.predict(Patches(), data, return_predictions=False)


if __name__ == "__main__":
    main()
