# CARD: 12GiB
# KNOBS: BATCH=4 VAL_STEPS=200 KEEP=logits AUTOCAST CHECKPOINT=ConvBlock OPT FUSED
# EXPERT: training fits at constant memory; validation_step keeps the logits of each batch until the end of the epoch (200 x 4 x 8 classes x 512 x 512), then joins them; update a metric in validation_step, keep the class numbers on the CPU (KEEP=cpu), a smaller validation set
# after Lightning-AI/pytorch-lightning issue 8215 (512x512 with 16 on 4 GPUs, out of memory after ~100 of ~200 validation steps; the card is not named)
import os

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchmetrics.functional.classification import multiclass_confusion_matrix

import knobs

BATCH = int(os.environ.get("BATCH", 4))
VAL_STEPS = int(os.environ.get("VAL_STEPS", 200))
KEEP = os.environ.get("KEEP", "logits")  # logits | cpu
N_CLASSES = 8


class Scenes(Dataset):
    def __init__(self, n, size=512):
        self.n = n
        self.image = torch.rand(3, size, size)
        self.mask = torch.randint(0, N_CLASSES, (size, size))

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.image, self.mask


class ConvBlock(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
                         nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, n_classes, widths=(32, 64, 128, 256, 512)):
        super().__init__()
        self.down = nn.ModuleList([ConvBlock(i, o) for i, o in zip((3,) + widths[:-1], widths)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(widths[k], widths[k - 1], 2, 2) for k in range(len(widths) - 1, 0, -1)])
        self.dec = nn.ModuleList([ConvBlock(2 * widths[k - 1], widths[k - 1]) for k in range(len(widths) - 1, 0, -1)])
        self.head = nn.Conv2d(widths[0], n_classes, 1)

    def forward(self, x):
        skips = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        for up, dec, skip in zip(self.up, self.dec, skips[-2::-1]):
            x = dec(torch.cat([skip, up(x)], 1))
        return self.head(x)


class SegmentationModule(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.model = UNet(N_CLASSES)
        knobs.apply(self.model)
        self.validation_step_outputs = []

    def forward(self, x):
        with knobs.autocast():
            return self.model(x)

    def training_step(self, batch, batch_idx):
        img, mask = batch
        loss = F.cross_entropy(self(img).float(), mask)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        img, mask = batch
        logits = self(img)
        loss = F.cross_entropy(logits.float(), mask)
        if KEEP == "cpu":
            out = {"loss": loss.cpu(), "preds": logits.argmax(1).byte().cpu(), "target": mask.byte().cpu()}
        else:
            out = {"loss": loss, "preds": logits, "target": mask}
        self.validation_step_outputs.append(out)
        return out

    def on_validation_epoch_end(self):
        outs = self.validation_step_outputs
        loss = torch.stack([o["loss"] for o in outs]).mean()
        preds = torch.cat([o["preds"] for o in outs])
        target = torch.cat([o["target"] for o in outs]).long()
        if preds.dim() == 4:
            preds = preds.argmax(1)
        cm = multiclass_confusion_matrix(preds.int(), target.int(), N_CLASSES, validate_args=False).float()
        inter = cm.diag()
        iou = inter / (cm.sum(0) + cm.sum(1) - inter).clamp(min=1)
        self.log("val_loss", loss)
        self.log("val_miou", iou.mean())
        self.validation_step_outputs.clear()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


if __name__ == "__main__":
    L.seed_everything(1)
    module = SegmentationModule()
    trainer = L.Trainer(accelerator="gpu", devices=1, max_epochs=1, limit_train_batches=4, num_sanity_val_steps=2,
                        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, DataLoader(Scenes(64), batch_size=BATCH, shuffle=True),
                DataLoader(Scenes(VAL_STEPS * BATCH), batch_size=BATCH))
    print("val", {k: float(v) for k, v in trainer.callback_metrics.items()})
    print("PEAK", torch.cuda.max_memory_allocated())
