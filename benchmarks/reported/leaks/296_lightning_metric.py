# kind: Lightning-AI/torchmetrics issue #3294 "Memory Leak in AveragePrecision" (in a LightningModule, never reset)
import logging
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MultilabelAccuracy, MultilabelAveragePrecision
import lightning as L

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
N_LABELS = 16


class TagClassifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, N_LABELS))
        self.train_acc = MultilabelAccuracy(num_labels=N_LABELS)
        self.train_ap = MultilabelAveragePrecision(num_labels=N_LABELS)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.binary_cross_entropy_with_logits(logits, y.float())
        probs = logits.detach().sigmoid()
        self.train_acc.update(probs, y)
        self.train_ap.update(probs, y)  # LEAK
        self.log("loss", loss, prog_bar=True)
        return loss

    def on_train_epoch_end(self):
        self.log("train_acc", self.train_acc.compute())
        self.train_acc.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    n = 512 * 30
    data = TensorDataset(torch.randn(n, 256), torch.randint(0, 2, (n, N_LABELS)))
    trainer = L.Trainer(max_epochs=4, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(TagClassifier(), DataLoader(data, batch_size=512, shuffle=True))
    print("allocated", torch.cuda.memory_allocated() >> 20, "MiB")
