# kind: one Fabric sets up the LightningModule of every fold and setting of a cross-validation and enters each into its list of callbacks; after Lightning-AI/pytorch-lightning issues 18356 and 14682
import logging
import warnings
from statistics import mean

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.fabric import Fabric

warnings.filterwarnings("ignore")
logging.getLogger("lightning").setLevel(logging.ERROR)
FOLDS = 5
SETTINGS = [(width, drop) for width in (160, 192, 224, 256) for drop in (0.0, 0.1, 0.25)]


class TabularNet(L.LightningModule):
    def __init__(self, features, width, drop, classes=4):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(features, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(drop),
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(drop),
            nn.Linear(width, classes))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=1e-2)


def make_table(rows=800, features=96, classes=4):
    x = torch.randn(rows, features)
    w = torch.randn(features, classes)
    y = (x @ w + 0.5 * torch.randn(rows, classes)).argmax(1)
    return x, y


class CrossValidation:
    def __init__(self, fabric, x, y, folds):
        self.fabric = fabric
        self.x = x.to(fabric.device)
        self.y = y.to(fabric.device)
        self.parts = torch.randperm(len(x)).to(fabric.device).chunk(folds)

    def fit(self, width, drop, train, steps=6, batch_size=128):
        net = TabularNet(self.x.size(1), width, drop)
        model, optimizer = self.fabric.setup(net, net.configure_optimizers())  # LEAK
        model.train()
        for step in range(steps):
            rows = train[torch.randint(len(train), (batch_size,), device=train.device)]
            loss = model.training_step((self.x[rows], self.y[rows]), step)
            optimizer.zero_grad()
            self.fabric.backward(loss)
            optimizer.step()
        return model

    @torch.no_grad()
    def evaluate(self, model, rows):
        model.eval()
        return (model(self.x[rows]).argmax(1) == self.y[rows]).float().mean().item()

    def score(self, width, drop):
        accuracies = []
        for held_out in range(len(self.parts)):
            train = torch.cat([p for i, p in enumerate(self.parts) if i != held_out])
            model = self.fit(width, drop, train)
            accuracies.append(self.evaluate(model, self.parts[held_out]))
        return mean(accuracies)


def main():
    L.seed_everything(0, verbose=False)
    fabric = Fabric(accelerator="cuda", devices=1)
    validation = CrossValidation(fabric, *make_table(), FOLDS)
    results = {}
    for width, drop in SETTINGS:
        results[width, drop] = validation.score(width, drop)
        fabric.print(f"width {width} dropout {drop}: accuracy {results[width, drop]:.3f}")
    fabric.print("best setting:", max(results, key=results.get))


if __name__ == "__main__":
    main()
