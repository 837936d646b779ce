# kind: itertools.tee over the device loader; the second iterator is read once in 40 batches, so tee keeps every batch in between and behind; own, in the manner of discuss.pytorch.org posts on itertools.cycle/tee with a DataLoader
import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Spectrograms(Dataset):
    def __init__(self, n=4000, mels=40, frames=50, classes=12):
        self.n, self.mels, self.frames, self.classes = n, mels, frames, classes
        self.g = torch.Generator().manual_seed(0)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.randn(self.mels, self.frames, generator=self.g), i % self.classes


class KeywordNet(nn.Module):
    def __init__(self, mels=40, classes=12):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(mels, 64, 9, stride=2), nn.BatchNorm1d(64), nn.ReLU(),
            nn.Conv1d(64, 64, 5, stride=2), nn.BatchNorm1d(64), nn.ReLU(),
        )
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        return self.fc(self.body(x).mean(-1))


def on_device(loader, device):
    for x, y in loader:
        yield x.to(device, non_blocking=True), y.to(device, non_blocking=True)


def forever(loader, device):
    while True:
        yield from on_device(loader, device)


def probe(model, batch):
    """Accuracy on a batch, with dropout and batch norm in evaluation mode."""
    x, y = batch
    model.eval()
    with torch.no_grad():
        acc = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return acc


def main(max_steps=160, probe_every=40):
    device = torch.device("cuda")
    loader = DataLoader(Spectrograms(), batch_size=32, shuffle=True, drop_last=True)
    model = KeywordNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    train_it, probe_it = itertools.tee(forever(loader, device))  # LEAK
    for step, (x, y) in enumerate(itertools.islice(train_it, max_steps)):  # ALSO
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % probe_every == 0:
            # the same batch that we have trained on, or so I thought
            acc = probe(model, next(probe_it))
            print(f"step {step:4d} loss {loss.item():.3f} probe acc {acc:.3f}")


if __name__ == "__main__":
    main()
