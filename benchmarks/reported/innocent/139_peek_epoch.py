# kind: the first batches of each epoch are peeked at for input statistics and put back with itertools.chain, they stay until the epoch's iterator is used up; after pytoolz/toolz PR 381
import itertools

import torch
from torch import nn

torch.manual_seed(1)
DEVICE = "cuda"


def load_epoch(epoch, batches):
    gen = torch.Generator().manual_seed(epoch)
    scale = 1.0 + 0.2 * epoch
    for _ in range(batches):
        x = torch.randn(64, 64, 64, generator=gen) * scale
        y = (x.mean((1, 2)) > 0).float()
        yield x.to(DEVICE), y.to(DEVICE)


def peekn(n, iterable):
    iterator = iter(iterable)
    head = tuple(itertools.islice(iterator, n))
    return head, itertools.chain(head, iterator)


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(64, 48, 5, stride=2)
        self.fc = nn.Linear(48, 1)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).mean(-1)).squeeze(-1)


def main():
    model = Probe().to(DEVICE)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(14):
        head, stream = peekn(8 + 2 * min(epoch, 4), load_epoch(epoch, 30))
        sample = torch.cat([x.flatten() for x, _ in head])
        mean, std = sample.mean(), sample.std()
        del head, sample
        correct = seen = 0
        for x, y in stream:
            logits = model((x - mean) / std)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            correct += ((logits > 0) == (y > 0.5)).sum().item()
            seen += len(y)
        print(f"epoch {epoch}: std {std.item():.3f} loss {loss.item():.4f} acc {correct / seen:.3f}")


if __name__ == "__main__":
    main()
