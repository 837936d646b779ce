# CARD: 4GiB
# KNOBS: SWA=1 BATCH=16 AUTOCAST CHECKPOINT=BertLayer OPT FUSED
# EXPERT: StochasticWeightAveraging deep-copies the whole module onto the GPU from the start (another 420 MiB beside weights, gradients and Adam's moments; 4198 instead of 3778 MiB at the peak); leaving it out helps but is not enough on this card: a smaller batch, mixed precision, gradient checkpointing too
# after Lightning-AI/pytorch-lightning issues 7432 and 7089 (https://github.com/Lightning-AI/pytorch-lightning/issues/7432), 4 GB
import logging
import os
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertModel

import knobs

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
MAX_LEN = 160


class Reviews(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        ids = torch.randint(1000, 30000, (MAX_LEN,))
        return ids, torch.ones(MAX_LEN, dtype=torch.long), i % 5


class BertDataModule(pl.LightningDataModule):
    def __init__(self, batch_size):
        super().__init__()
        self.batch_size, self.num_classes = batch_size, 5

    def setup(self, stage=None):
        self.train, self.val, self.test = Reviews(4 * self.batch_size), Reviews(32), Reviews(32)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=self.batch_size)

    def test_dataloader(self):
        return DataLoader(self.test, batch_size=self.batch_size)


class BertClassifier(pl.LightningModule):
    def __init__(self, nb_class, lr=2e-5):
        super().__init__()
        self.lr = lr
        self.bert = BertModel(BertConfig(attn_implementation="eager"))
        self.drop = torch.nn.Dropout(0.1)
        self.fc = torch.nn.Linear(768, nb_class)
        knobs.apply(self)

    def forward(self, ids, mask):
        return self.fc(self.drop(self.bert(ids, attention_mask=mask).pooler_output))

    def step(self, batch, name):
        ids, mask, y = batch
        loss = torch.nn.functional.cross_entropy(self(ids, mask), y)
        self.log(f"{name}_loss", loss)
        return loss

    def training_step(self, batch, i):
        return self.step(batch, "train")

    def validation_step(self, batch, i):
        self.step(batch, "val")

    def test_step(self, batch, i):
        self.step(batch, "test")

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} allocated MiB {torch.cuda.memory_allocated() // 2 ** 20}"
              f" peak MiB {torch.cuda.max_memory_allocated() // 2 ** 20}")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main():
    dm = BertDataModule(int(os.environ.get("BATCH", 16)))
    model = BertClassifier(nb_class=dm.num_classes)
    callbacks = []
    if os.environ.get("SWA", "1") == "1":
        callbacks.append(StochasticWeightAveraging(swa_lrs=1e-5, swa_epoch_start=2,
                                                   device=None))
    trainer = pl.Trainer(accelerator="gpu", devices=1, max_epochs=4, callbacks=callbacks, logger=False,
                         enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                         num_sanity_val_steps=0, precision="bf16-mixed" if os.environ.get("AUTOCAST") == "1" else 32)
    trainer.fit(model, dm)
    trainer.test(model, dm, verbose=False)
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
