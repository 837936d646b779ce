# CARD: 11GiB
# KNOBS: BATCH=20 AUTOCAST CHECKPOINT=Bottleneck CHECKPOINT_PATHS=model.layer1.*,model.layer2.* OPT FUSED
# EXPERT: a batch of 20 places is 400 tiles of 128x128 (20 augmented ones each) through a ResNet-50; smaller BATCH_SIZE, mixed precision (apex in the original), ResNet-18
# after surya501/loc2vec issue 3 (there on a 15.9 GiB card with the PyTorch of 2019, which asked for the same 400 MiB)
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset
from torchvision import models

import knobs

IMG_SIZE = 128
BATCH_SIZE = int(os.environ.get("BATCH", 20))
N_EPOCHS = 1
MARGIN = 1.0
STEPS = 3


class Loc2Vec(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = models.resnet50(weights=None)
        self.model.avgpool = nn.AvgPool2d(kernel_size=2, stride=1, padding=0)
        self.model.fc = nn.Linear(18432, 16)

    def forward(self, x):
        return self.model(x)


class GeoTileDataset(Dataset):
    """each sample is a tile with its augmentations: [20, 3, IMG_SIZE, IMG_SIZE]"""

    def __init__(self, n=200):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        tile = torch.rand(3, IMG_SIZE, IMG_SIZE)
        return torch.stack([tile.roll(k, -1) for k in range(20)]), torch.full((20,), i)


def pdist(vectors):
    return (-2 * vectors.mm(vectors.t()) + vectors.pow(2).sum(dim=1).view(1, -1)
            + vectors.pow(2).sum(dim=1).view(-1, 1))


class OnlineTripletLoss(nn.Module):
    def __init__(self, margin):
        super().__init__()
        self.margin = margin

    def get_triplets(self, embeddings, labels):
        dist = pdist(embeddings.detach()).cpu().numpy()
        labels = labels.numpy()
        triplets = []
        for label in sorted(set(labels.tolist())):
            inside, outside = np.where(labels == label)[0], np.where(labels != label)[0]
            if len(inside) < 2 or not len(outside):
                continue
            for a in range(0, len(inside) - 1):
                p = inside[a + 1]
                loss = dist[inside[a], p] - dist[inside[a], outside] + self.margin
                triplets.append([inside[a], p, outside[int(np.argmax(loss))]])
        return torch.from_numpy(np.array(triplets)).long()

    def forward(self, embeddings, target):
        triplets = self.get_triplets(embeddings, target).to(embeddings.device)
        ap = (embeddings[triplets[:, 0]] - embeddings[triplets[:, 1]]).pow(2).sum(1)
        an = (embeddings[triplets[:, 0]] - embeddings[triplets[:, 2]]).pow(2).sum(1)
        return F.relu(ap - an + self.margin).mean(), len(triplets)


def train_epoch(train_loader, model, loss_fn, optimizer):
    model.train()
    losses = []
    for batch_idx, (data, target) in enumerate(train_loader):
        # [bs, 20, 3, IMG_SIZE, IMG_SIZE] -> [bs*20, 3, IMG_SIZE, IMG_SIZE]
        data = data.view(-1, 3, IMG_SIZE, IMG_SIZE).cuda()
        target = target.view(-1)  # only for the choice of triplets, on the CPU
        optimizer.zero_grad()
        with knobs.autocast():
            outputs = model(data)
        loss, non_zero = loss_fn(outputs.float(), target)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        print(f"Train: [{batch_idx}/{len(train_loader)}]\tLoss: {np.mean(losses):.6f}\ttriplets: {non_zero}")
        if batch_idx + 1 == STEPS:
            break
    return np.mean(losses)


def fit(train_loader, model, loss_fn, optimizer, scheduler, n_epochs):
    for epoch in range(n_epochs):
        train_loss = train_epoch(train_loader, model, loss_fn, optimizer)
        scheduler.step()
        print(f"Epoch: {epoch + 1}/{n_epochs}. Train set: Average loss: {train_loss:.4f}")


def main():
    loader = DataLoader(GeoTileDataset(), batch_size=BATCH_SIZE, shuffle=True)
    model = Loc2Vec().cuda()
    knobs.apply(model)
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    scheduler = lr_scheduler.StepLR(optimizer, 16, gamma=0.1)
    fit(loader, model, OnlineTripletLoss(MARGIN), optimizer, scheduler, N_EPOCHS)
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
