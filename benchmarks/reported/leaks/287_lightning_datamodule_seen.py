# kind: LightningDataModule that remembers the transferred batches for a later plot; in the manner of a Lightning discussion "where does my memory go? not in the module"
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LesionData(L.LightningDataModule):
    def __init__(self, n=640, batch_size=8):
        super().__init__()
        self.n, self.batch_size = n, batch_size
        self.gallery = {"images": [], "names": []}

    def setup(self, stage):
        g = torch.Generator().manual_seed(0)
        self.train_set = TensorDataset(torch.rand(self.n, 3, 40, 40, generator=g),
                                       torch.randint(0, 4, (self.n,), generator=g))

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        x = (x - x.mean((2, 3), keepdim=True)) / (x.std((2, 3), keepdim=True) + 1e-5)
        if self.trainer.training:
            self.gallery["images"] += [x[:4]]  # LEAK
            self.gallery["names"] += [f"batch{len(self.gallery['images'])}"]
        return x, y


class LitLesion(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 12, 3, 2), nn.ReLU(), nn.Conv2d(12, 24, 3, 2), nn.ReLU(),
                                 nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 4))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    L.seed_everything(1)
    dm = LesionData()
    trainer = L.Trainer(max_epochs=2, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(LitLesion(), dm)
    print(dm.gallery["names"][-1])
