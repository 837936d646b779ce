# kind: torchmetrics AveragePrecision called each step and never reset, its list states grow; from Lightning-AI/torchmetrics issue 3294
import torch
import torch.nn as nn
from torchmetrics.classification import MultilabelAccuracy, MultilabelAveragePrecision

N_LABELS = 16
BATCH_SIZE = 512


class Tagger(nn.Module):
    def __init__(self, in_dim=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(in_dim, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, N_LABELS))

    def forward(self, x):
        return self.net(x)


def synth(proj):
    x = torch.randn(BATCH_SIZE, 64, device="cuda")
    y = (x @ proj + 0.3 * torch.randn(BATCH_SIZE, N_LABELS, device="cuda") > 0.8).long()
    return x, y


class Trainer:
    def __init__(self, steps_per_epoch=40):
        self.model = Tagger().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.criterion = nn.BCEWithLogitsLoss()
        self.accuracy = MultilabelAccuracy(num_labels=N_LABELS).to("cuda")
        self.avg_precision = MultilabelAveragePrecision(num_labels=N_LABELS).to("cuda")
        self.proj = torch.randn(64, N_LABELS, device="cuda") / 8
        self.steps_per_epoch = steps_per_epoch

    def training_step(self):
        x, y = synth(self.proj)
        logits = self.model(x)
        loss = self.criterion(logits, y.float())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        pred = logits.detach().sigmoid()
        acc = self.accuracy(pred, y)
        ap = self.avg_precision(pred, y)  # LEAK
        return loss.item(), acc.item(), ap.item()

    def fit(self, epochs):
        for epoch in range(epochs):
            logs = []
            for _ in range(self.steps_per_epoch):
                logs.append(self.training_step())
            self.accuracy.reset()
            mean = [sum(c) / len(logs) for c in zip(*logs)]
            print("epoch %d loss %.4f acc %.4f ap %.4f" % (epoch, *mean))


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer().fit(epochs=5)
