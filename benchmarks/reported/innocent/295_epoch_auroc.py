# kind: https://github.com/Lightning-AI/torchmetrics/issues/1949: list states of AUROC grow within an epoch and are reset by Lightning at its end
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAUROC

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class ClickModel(L.LightningModule):
    """Click-through rates, with fields as embeddings."""

    def __init__(self, fields=16, vocab=500, dim=16):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(vocab, dim) for _ in range(fields))
        self.mlp = nn.Sequential(nn.Linear(fields * dim, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 16))
        self.auc = BinaryAUROC()
        self.losses = []

    def forward(self, x):
        emb = [t(x[:, i]) for i, t in enumerate(self.tables)]
        return self.mlp(torch.cat(emb, -1))

    def training_step(self, batch, index):
        x, y = batch
        logits = self(x)
        loss = F.binary_cross_entropy_with_logits(logits, y.float())
        self.auc.update(logits.detach().flatten(), y.flatten())
        self.log("auc", self.auc, on_step=False, on_epoch=True)
        self.losses.append(loss.item())
        if index % 20 == 0:
            print(f"epoch {self.current_epoch} batch {index}: {torch.cuda.memory_allocated() / 2**20:.2f} MiB")
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch}: mean loss {sum(self.losses) / len(self.losses):.4f}")
        self.losses.clear()

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=0.01)


def main():
    n = 1024 * 50
    data = TensorDataset(torch.randint(0, 500, (n, 16)), torch.randint(0, 2, (n, 16)))
    trainer = L.Trainer(
        max_epochs=3, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(ClickModel(), DataLoader(data, batch_size=1024))


if __name__ == "__main__":
    main()
