# kind: AveragePrecision of torchmetrics called as a function on each training batch, exact curves need all predictions and nobody resets it; from Lightning-AI/torchmetrics issue 3294
import torch
from torch import nn
from torchmetrics.classification import MultilabelAccuracy, MultilabelAveragePrecision

N_LABELS = 24
BATCH = 1024


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.head = nn.Linear(128, N_LABELS)

    def forward(self, x):
        return self.head(self.body(x))


class Trainer:
    def __init__(self, model, lr=1e-3):
        self.model = model.cuda()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.crit = nn.BCEWithLogitsLoss()
        self.accuracy = MultilabelAccuracy(num_labels=N_LABELS).cuda()
        self.avg_precision = MultilabelAveragePrecision(num_labels=N_LABELS, thresholds=None).cuda()

    def training_step(self, x, y):
        self.opt.zero_grad(set_to_none=True)
        logits = self.model(x)
        loss = self.crit(logits, y.float())
        loss.backward()
        self.opt.step()
        probs = logits.detach().sigmoid()
        self.accuracy.update(probs, y)
        self.avg_precision.update(probs, y)  # LEAK
        return loss.item()

    def fit(self, loader):
        running = 0.0
        for i, (x, y) in enumerate(loader, 1):
            running += self.training_step(x.cuda(), y.cuda())
            if i % 25 == 0:
                print(f"{i:4d} loss {running / 25:.4f} acc {self.accuracy.compute().item():.3f}")
                self.accuracy.reset()
                running = 0.0
        print("mAP over training:", round(self.avg_precision.compute().item(), 4))


def songs(n):
    w = torch.randn(40, N_LABELS)
    for _ in range(n):
        x = torch.randn(BATCH, 40)
        yield x, (x @ w > 2).long()


def main():
    torch.manual_seed(1)
    Trainer(Tagger()).fit(songs(125))


main()
