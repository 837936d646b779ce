# kind: https://github.com/Lightning-AI/torchmetrics/issues/3294: a metric with list states is updated in each training step and never reset
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F
from torchmetrics.classification import MultilabelAccuracy, MultilabelAveragePrecision, MultilabelF1Score

device = "cuda"
LABELS = 24


class Tagger(nn.Module):
    """Tags for short pieces of music, from mel spectrograms."""

    def __init__(self, width=48):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.gru = nn.GRU(width * 8, 96, batch_first=True, bidirectional=True)
        self.out = nn.Linear(192, LABELS)

    def forward(self, mel):
        h = self.conv(mel).flatten(1, 2).transpose(1, 2)
        return self.out(self.gru(h)[0])


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=lr, total_steps=100)
        self.metrics = torchmetrics.MetricCollection(
            {
                "acc": MultilabelAccuracy(LABELS),
                "f1": MultilabelF1Score(LABELS),
                "ap": MultilabelAveragePrecision(LABELS, thresholds=None),
            }
        ).to(device)

    def step(self, mel, tags):
        logits = self.model(mel)
        loss = F.binary_cross_entropy_with_logits(logits, tags.float())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.metrics.update(logits.detach().sigmoid().flatten(0, 1), tags.flatten(0, 1))  # LEAK
        return loss.item()


def main():
    trainer = Trainer(Tagger().to(device), 1e-3)
    for step in range(100):
        mel = torch.randn(16, 1, 32, 256, device=device)
        tags = torch.randint(0, 2, (16, 64, LABELS), device=device)
        loss = trainer.step(mel, tags)
        if step % 10 == 0:
            print(f"{step}: loss {loss:.4f} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
