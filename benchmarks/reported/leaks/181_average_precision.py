# kind: AveragePrecision keeps all predictions and targets in list states and the metric is called every step without reset(); after Lightning-AI/torchmetrics issue 3294
import torch
import torch.nn as nn
from torchmetrics import Accuracy, AveragePrecision, Precision

N_LABELS = 16
BATCH_SIZE = 2056


class Tagger(nn.Module):
    def __init__(self, in_dim=32, hidden=64, n_labels=N_LABELS):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(in_dim, hidden), nn.ReLU(), nn.Linear(hidden, n_labels))

    def forward(self, x):
        return self.net(x)


class Experiment:
    def __init__(self, device):
        self.device = device
        self.model = Tagger().to(device)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.loss_fn = nn.BCEWithLogitsLoss()
        kw = dict(task="multilabel", num_labels=N_LABELS, validate_args=False)
        self.acc = Accuracy(**kw).to(device)
        self.prec = Precision(**kw).to(device)
        self.avg_p = AveragePrecision(**kw).to(device)

    def step(self, x, y):
        logits = self.model(x)
        loss = self.loss_fn(logits, y.float())
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()

        pred = torch.sigmoid(logits.detach())
        acc = self.acc(pred, y)
        prec = self.prec(pred, y)
        avg_p = self.avg_p(pred, y)  # LEAK
        return {"loss": loss.item(), "acc": acc.item(), "prec": prec.item(), "ap": avg_p.item()}


def batches(n, device):
    for _ in range(n):
        x = torch.randn(BATCH_SIZE, 32)
        y = torch.randint(0, 2, (BATCH_SIZE, N_LABELS))
        yield x.to(device), y.to(device)


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    exp = Experiment(device)
    for i, (x, y) in enumerate(batches(80, device)):
        logs = exp.step(x, y)
        if i % 20 == 0:
            print(i, logs)


if __name__ == "__main__":
    main()
