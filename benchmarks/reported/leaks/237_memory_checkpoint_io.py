# kind: a Lightning CheckpointIO plugin holds checkpoints in GPU memory since the cluster's disk is slow, ModelCheckpoint removes old ones through remove_checkpoint(), which was left empty as there is no file to delete; from Lightning's CheckpointIO plugins, ray-project/ray PR 37962 (in-memory checkpoints and delete_fn) and erdos-project/erdos PR 37
import logging
import tempfile
import warnings

import lightning as L
import torch
import torch.nn as nn
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import CheckpointIO
from torch.utils.data import DataLoader, Dataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


def snapshot(obj):
    if isinstance(obj, torch.Tensor):
        return obj.detach().clone()
    if isinstance(obj, dict):
        return type(obj)((k, snapshot(v)) for k, v in obj.items())
    if isinstance(obj, (list, tuple)):
        return type(obj)(snapshot(v) for v in obj)
    return obj


class DeviceMemoryIO(CheckpointIO):
    """Files are entries of a dict; flush() writes one of them to the disk in the end."""

    def __init__(self):
        self.files = {}

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        self.files[str(path)] = snapshot(checkpoint)  # LEAK

    def load_checkpoint(self, path, map_location=None, **kwargs):
        return self.files[str(path)]

    def remove_checkpoint(self, path):
        pass

    def flush(self, path, target):
        torch.save(self.files[str(path)]["state_dict"], target)


class Pendulum(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, i):
        t = torch.arange(33) * 0.2
        phase = 0.01 * i
        angle = torch.sin(t + phase) * torch.exp(-0.02 * t)
        return angle[:32, None], angle[32:]


class Forecaster(L.LightningModule):
    def __init__(self, hidden=176):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        out, _ = self.rnn(x)
        loss = nn.functional.mse_loss(self.head(out[:, -1]), y)
        if batch_idx % 20 == 0:
            print(f"epoch {self.current_epoch} batch {batch_idx}: loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main():
    L.seed_everything(0, verbose=False)
    io = DeviceMemoryIO()
    with tempfile.TemporaryDirectory() as root:
        keep = ModelCheckpoint(dirpath=root, filename="{step}", every_n_train_steps=2, save_top_k=1)
        trainer = L.Trainer(
            max_epochs=2, accelerator="gpu", devices=1, plugins=[io], callbacks=[keep], logger=False,
            default_root_dir=root, enable_progress_bar=False, enable_model_summary=False)
        trainer.fit(Forecaster(), DataLoader(Pendulum(), batch_size=16, shuffle=True))
        io.flush(keep.best_model_path, f"{root}/last.pt")
        print("kept", keep.best_model_path.rsplit("/", 1)[-1])


if __name__ == "__main__":
    main()
