# kind: validation outputs appended to a list of the Lightning module and cleared in on_validation_epoch_end; from the Lightning 2.0 migration guide (the repaired form)
import logging
import warnings

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


class LitRetrieval(pl.LightningModule):
    def __init__(self, dim=256):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(48, 128), nn.ReLU(), nn.Linear(128, dim))
        self.b = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, dim))
        self.validation_step_outputs = []
        self.history = []

    def embed(self, batch):
        x, y = batch
        return F.normalize(self.a(x), dim=1), F.normalize(self.b(y), dim=1)

    def training_step(self, batch, _):
        u, v = self.embed(batch)
        sim = u @ v.T / 0.07
        return F.cross_entropy(sim, torch.arange(len(sim), device=self.device))

    def validation_step(self, batch, _):
        self.validation_step_outputs.append(self.embed(batch))

    def on_validation_epoch_end(self):
        u = torch.cat([o[0] for o in self.validation_step_outputs])
        v = torch.cat([o[1] for o in self.validation_step_outputs])
        rank = ((u @ v.T) > (u * v).sum(1, keepdim=True)).sum(1)
        self.history.append((rank < 10).float().mean().item())
        self.validation_step_outputs.clear()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def pairs(n, seed):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 12, generator=g)
    p, q = torch.randn(12, 48, generator=torch.Generator().manual_seed(1)), torch.randn(12, 32, generator=torch.Generator().manual_seed(2))
    return TensorDataset(z @ p, (z @ q).tanh())


if __name__ == "__main__":
    pl.seed_everything(0)
    trainer = pl.Trainer(max_epochs=5, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
    lit = LitRetrieval()
    trainer.fit(lit, DataLoader(pairs(2560, 3), 64, shuffle=True), DataLoader(pairs(1024, 4), 32))
    print("recall at 10:", [round(h, 3) for h in lit.history])
