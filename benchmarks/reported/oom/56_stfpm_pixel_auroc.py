# CARD: 12GiB
# KNOBS: BATCH=32 EVAL_BATCH=32 N_TEST=384 MASK_SIZE=1024 THRESHOLDS COMPUTE_ON_CPU AUTOCAST
# EXPERT: training fits (1 GiB); without thresholds both pixel metrics keep every pixel's score and label of the validation set on the GPU (384 masks of 1024 x 1024, 3 GiB) and compute() joins them, sorts and sums them up in copies with 64-bit indices, several times that; thresholds=200 (constant memory), compute_on_cpu=True, half as many test pictures, or maps and masks of 512 x 512; the training batch, a smaller evaluation batch or autocast is not enough
# Source: open-edge-platform/anomalib 15 (STFPM, out of memory in validation_step_end, pixel_metrics), Lightning-AI/torchmetrics 1461 (AUROC stores everything), 1323 (accumulation of predictions and targets with thresholds=None); lightning, torchmetrics, torchvision
import os

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision
from torchvision.models import resnet18
from torchvision.models.feature_extraction import create_feature_extractor

import knobs

CFG = {
    "train_batch": int(os.environ.get("BATCH", 32)),
    "eval_batch": int(os.environ.get("EVAL_BATCH", 32)),
    "n_test": int(os.environ.get("N_TEST", 384)),
    "size": 256,  # of the input; the masks have the size of the pictures
    "mask_size": int(os.environ.get("MASK_SIZE", 1024)),
    "thresholds": int(os.environ["THRESHOLDS"]) if os.environ.get("THRESHOLDS") else None,
    "compute_on_cpu": os.environ.get("COMPUTE_ON_CPU", "0") == "1",
    "layers": ["layer1", "layer2", "layer3"],
}


class Pills(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        s, m = CFG["size"], CFG["mask_size"]
        return {"image": torch.zeros(3, s, s, dtype=torch.uint8), "mask": torch.zeros(m, m, dtype=torch.uint8)}


class STFPM(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = create_feature_extractor(resnet18(weights=None), CFG["layers"])
        self.student = create_feature_extractor(resnet18(weights=None), CFG["layers"])
        self.teacher.requires_grad_(False)

    def forward(self, x):
        self.teacher.eval()
        return self.teacher(x), self.student(x)

    def anomaly_map(self, t, s, size):
        total = None
        for k in t:
            d = 0.5 * (F.normalize(t[k]) - F.normalize(s[k])).pow(2).sum(1, keepdim=True)
            d = F.interpolate(d, size=size, mode="bilinear", align_corners=False)
            total = d if total is None else total * d
        return total.squeeze(1)


class AnomalyModule(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = STFPM()
        kw = dict(thresholds=CFG["thresholds"], compute_on_cpu=CFG["compute_on_cpu"])
        self.pixel_metrics = MetricCollection({"pixel_AUROC": BinaryAUROC(**kw), "pixel_AP": BinaryAveragePrecision(**kw)})

    def training_step(self, batch, idx):
        with knobs.autocast():
            t, s = self.model(batch["image"].float() / 255)
        loss = sum(0.5 * (F.normalize(t[k].float()) - F.normalize(s[k].float())).pow(2).sum(1).mean() for k in t)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, idx):
        with knobs.autocast():
            t, s = self.model(batch["image"].float() / 255)
        maps = self.model.anomaly_map(t, s, batch["mask"].shape[-2:]).float().clamp(0, 1)
        self.pixel_metrics.update(maps.flatten(), batch["mask"].flatten().int())

    def on_validation_epoch_end(self):
        self.log_dict(self.pixel_metrics.compute())
        self.pixel_metrics.reset()

    def configure_optimizers(self):
        return torch.optim.SGD(self.model.student.parameters(), lr=0.4, momentum=0.9, weight_decay=1e-4)


if __name__ == "__main__":
    module = AnomalyModule()
    knobs.apply(module.model)
    trainer = L.Trainer(accelerator="gpu", devices=1, max_epochs=1, limit_train_batches=2, num_sanity_val_steps=0, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, DataLoader(Pills(64), CFG["train_batch"], shuffle=True), DataLoader(Pills(CFG["n_test"]), CFG["eval_batch"]))
    print({k: float(v) for k, v in trainer.callback_metrics.items()})
