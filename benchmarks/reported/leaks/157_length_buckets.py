# kind: a streaming batcher groups utterances by their exact number of samples and gives out full groups only, recordings of natural length hardly ever find partners; after fgnt/lazy_dataset PR 14
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"
RATE = 16000
BATCH = 4
STEPS = 110
N_KEYWORDS = 12


def corpus():
    """Endless stream of (waveform, label). Two thirds are clips cut by the
    annotation tool to 1, 2 or 3 seconds, the rest are whole utterances."""
    while True:
        if random.random() < 0.67:
            n = RATE * random.choice((1, 2, 3))
        else:
            n = random.randint(int(1.5 * RATE), 6 * RATE)
        t = torch.arange(n) / RATE
        label = random.randrange(N_KEYWORDS)
        wav = torch.sin(2 * torch.pi * (180 + 40 * label) * t) + 0.2 * torch.randn(n)
        yield wav, label


class SameLengthBatches:
    """Batches without padding: all the utterances of a batch are equally long."""

    def __init__(self, source, batch_size, device):
        self.source = source
        self.batch_size = batch_size
        self.device = device
        self.groups = {}

    def __iter__(self):
        for wav, label in self.source:
            wav = self.normalise(wav.to(self.device, non_blocking=True))
            group = self.groups.setdefault(wav.numel(), [])
            group.append((wav, label))  # LEAK
            if len(group) == self.batch_size:
                del self.groups[wav.numel()]
                waves, labels = zip(*group)
                yield torch.stack(waves).unsqueeze(1), torch.tensor(labels, device=self.device)

    @staticmethod
    def normalise(wav):
        return (wav - wav.mean()) / (wav.std() + 1e-5)


class KeywordNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.frontend = nn.Conv1d(1, 40, 400, stride=160)
        self.body = nn.Sequential(
            nn.BatchNorm1d(40), nn.ReLU(),
            nn.Conv1d(40, 64, 5, stride=2, padding=2), nn.BatchNorm1d(64), nn.ReLU(),
            nn.Conv1d(64, 96, 5, stride=2, padding=2), nn.BatchNorm1d(96), nn.ReLU(),
        )
        self.head = nn.Linear(96, N_KEYWORDS)

    def forward(self, x):
        h = self.body(self.frontend(x).abs().log1p())
        return self.head(h.mean(-1))


def main():
    random.seed(3)
    torch.manual_seed(3)
    net = KeywordNet().to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    loader = SameLengthBatches(corpus(), BATCH, DEVICE)
    seen = correct = 0
    for step, (waves, labels) in enumerate(loader, 1):
        logits = net(waves)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += labels.numel()
        correct += (logits.argmax(1) == labels).sum().item()
        if step % 20 == 0:
            print(f"step {step:4d}  loss {loss.item():.3f}  acc {correct / seen:.3f}")
            seen = correct = 0
        if step == STEPS:
            break


if __name__ == "__main__":
    main()
