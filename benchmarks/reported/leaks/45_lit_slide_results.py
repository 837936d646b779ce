# kind: callback of a Lightning module keeps the results dict of each training batch with the images in it, for a report in on_fit_end; from microsoft/hi-ml PR 293
import enum
import logging
import warnings

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


class ResultsKey(str, enum.Enum):
    LOSS = "loss"
    PROB = "prob"
    TRUE_LABEL = "true_label"
    IMAGE = "image"
    BAG_ATTN = "bag_attn"
    SLIDE_ID = "slide_id"


class Slides(Dataset):
    def __init__(self, n_slides, tiles=16, size=40):
        self.n, self.tiles, self.size = n_slides, tiles, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        label = i % 2
        return torch.rand(self.tiles, 3, self.size, self.size, generator=g) + 0.2 * label, torch.tensor(float(label)), i


class DeepMIL(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 16, 5, 4), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.attn = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
        self.head = nn.Linear(32, 1)

    def forward(self, tiles):
        b, t = tiles.shape[:2]
        feats = self.encoder(tiles.flatten(0, 1)).view(b, t, -1)
        a = self.attn(feats).softmax(1)
        return self.head((a * feats).sum(1)).squeeze(-1), a

    def training_step(self, batch, batch_idx):
        tiles, label, slide = batch
        logit, attn = self(tiles)
        loss = F.binary_cross_entropy_with_logits(logit, label)
        return {ResultsKey.LOSS: loss, "loss": loss, ResultsKey.PROB: logit.detach().sigmoid(), ResultsKey.TRUE_LABEL: label,
                ResultsKey.IMAGE: tiles, ResultsKey.BAG_ATTN: attn.detach(), ResultsKey.SLIDE_ID: slide}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class SlideReport(pl.Callback):
    """top and bottom slides by probability of the true class"""

    def __init__(self, k=5):
        self.k = k
        self.collected = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        results = {k: v for k, v in outputs.items() if k != "loss"}
        self.collected.append(results)  # LEAK

    def on_fit_end(self, trainer, pl_module):
        rows = [(p.item(), s.item()) for r in self.collected for p, s in zip(r[ResultsKey.PROB], r[ResultsKey.SLIDE_ID])]
        rows.sort(reverse=True)
        print("most certain slides:", [s for _, s in rows[:self.k]])


def main():
    pl.seed_everything(3)
    trainer = pl.Trainer(max_epochs=2, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, callbacks=[SlideReport()])
    trainer.fit(DeepMIL(), DataLoader(Slides(100), batch_size=2, shuffle=True))


if __name__ == "__main__":
    main()
