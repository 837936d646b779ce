# kind: innocent, validation outputs are appended by the module and cleared in on_validation_epoch_end; from Lightning-AI/pytorch-lightning pull request 16520, ray-project/ray pull request 34147
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class DenoisingDataset(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(self.seed * 10000 + i)
        coarse = torch.rand(1, 1, 4, 4, generator=gen)
        clean = F.interpolate(coarse, size=32, mode="bilinear")[0]
        return clean + 0.2 * torch.randn(clean.shape, generator=gen), clean


class LitAutoEncoder(L.LightningModule):
    def __init__(self, ch=12):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, ch, 3, 2, 1), nn.ReLU(), nn.Conv2d(ch, ch, 3, 2, 1), nn.ReLU())
        self.decoder = nn.Sequential(nn.ConvTranspose2d(ch, ch, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(ch, 1, 4, 2, 1))
        self.validation_step_outputs = []
        self.psnr = []

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, batch_idx):
        noisy, clean = batch
        return F.mse_loss(self(noisy), clean)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        pass

    def validation_step(self, batch, batch_idx):
        noisy, clean = batch
        recon = self(noisy)
        self.validation_step_outputs.append((recon, clean))
        return F.mse_loss(recon, clean)

    def on_validation_epoch_end(self):
        recon = torch.cat([r for r, _ in self.validation_step_outputs])
        clean = torch.cat([c for _, c in self.validation_step_outputs])
        self.psnr.append(-10 * torch.log10(F.mse_loss(recon, clean)).item())
        self.validation_step_outputs.clear()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=4e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)}


def main():
    L.seed_everything(1, verbose=False)
    model = LitAutoEncoder()
    trainer = L.Trainer(max_epochs=12, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=2)
    trainer.fit(model, DataLoader(DenoisingDataset(80, 0), batch_size=8, shuffle=True),
                DataLoader(DenoisingDataset(64, 1), batch_size=8))
    print("psnr", [round(v, 2) for v in model.psnr])


if __name__ == "__main__":
    main()
