# CARD: 40GiB
# KNOBS: BATCH=8 SIZE=1024 AUTOCAST CHECKPOINT=SwinTransformerBlock FREEZE OPT FUSED
# EXPERT: window attention and MLP activations of the first stages at 1024x1024 (65536 tokens in stage 1); smaller crops or batch, checkpoint the Swin blocks, bf16-mixed; the optimizer does not matter
# Source: Swin segmentation with 1024 px inputs out of memory on a 48 GB card though 512 px fits (Swin-Transformer-Semantic-Segmentation 65, 28)
import os
import warnings

import lightning as L
import timm
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import knobs

warnings.filterwarnings("ignore")
IMG = int(os.environ.get("SIZE", 1024))
N_CLASSES = 19


class Cityscapes(Dataset):
    def __init__(self, n):
        self.n = n
        self.image = torch.zeros(3, IMG, IMG)

    def __len__(self):
        return self.n

    def __getitem__(self, idx):
        return self.image, torch.full((IMG, IMG), idx % N_CLASSES)


class SwinSegmenter(L.LightningModule):
    def __init__(self, lr=6e-5, freeze=False):
        super().__init__()
        self.lr = lr
        self.backbone = timm.create_model("swin_base_patch4_window7_224", features_only=True, img_size=IMG)
        if freeze:
            self.backbone.requires_grad_(False)
        chans = self.backbone.feature_info.channels()
        self.laterals = nn.ModuleList(nn.Conv2d(c, 256, 1) for c in chans)
        self.fuse = nn.Sequential(nn.Conv2d(256 * len(chans), 256, 3, padding=1, bias=False),
                                  nn.BatchNorm2d(256), nn.ReLU(inplace=True), nn.Dropout2d(0.1))
        self.classifier = nn.Conv2d(256, N_CLASSES, 1)

    def forward(self, x):
        feats = [lat(f.permute(0, 3, 1, 2)) for lat, f in zip(self.laterals, self.backbone(x))]
        size = feats[0].shape[-2:]
        feats = [F.interpolate(f, size=size, mode="bilinear", align_corners=False) for f in feats]
        y = self.classifier(self.fuse(torch.cat(feats, 1)))
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)

    def training_step(self, batch, batch_idx):
        images, masks = batch
        loss = F.cross_entropy(self(images), masks, ignore_index=255)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, masks = batch
        pred = self(images).argmax(1)
        self.log("val_acc", (pred == masks).float().mean())

    def configure_optimizers(self):
        params = [p for p in self.parameters() if p.requires_grad]
        return torch.optim.AdamW(params, lr=self.lr, weight_decay=0.01)


def main():
    bs = int(os.environ.get("BATCH", 8))
    model = SwinSegmenter(freeze=os.environ.get("FREEZE", "0") == "1")
    knobs.apply(model)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        max_epochs=1,
        limit_train_batches=2,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        precision="bf16-mixed" if os.environ.get("AUTOCAST", "0") == "1" else "32-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, DataLoader(Cityscapes(2 * bs), batch_size=bs), DataLoader(Cityscapes(bs), batch_size=bs))
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
