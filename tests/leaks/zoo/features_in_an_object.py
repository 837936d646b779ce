"""CNN: an object that gathers statistics keeps the features themselves."""

import torch
from models import CNN, DEVICE, STEPS, images, labels
from torch.nn import functional


class Statistics:
    def __init__(self):
        self.features = {}
        self.count = 0

    def add(self, name, features):
        self.count += 1
        self.features[name + str(self.count)] = features  # <- leak: outputs retained
        # fixed: self.features[name + str(self.count)] = float(features.mean())


def train(model, statistics):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        predictions = model(images())
        statistics.add("predictions", predictions.detach())
        loss = functional.cross_entropy(predictions, labels())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    train(CNN(classes=1000).to(DEVICE), Statistics())


main()
