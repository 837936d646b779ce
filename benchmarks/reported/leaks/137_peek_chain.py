# kind: each peek at the next batch puts it back with itertools.chain, the new chain holds on to the list with the peeked batch for as long as the stream lives; after python/cpython issue 135480
import itertools

import torch
from torch import nn

torch.manual_seed(1)
DEVICE = "cuda"


def utterances(seed):
    """Endless stream of padded spectrogram batches of changing length."""
    gen = torch.Generator().manual_seed(seed)
    while True:
        frames = int(torch.randint(160, 320, (1,), generator=gen))
        spec = torch.randn(12, frames, 80, generator=gen)
        target = torch.randint(0, 30, (12,), generator=gen)
        yield spec.to(DEVICE), target.to(DEVICE)


class Lookahead:
    """Iterator that can tell what comes next without consuming it."""

    def __init__(self, iterable):
        self._it = iter(iterable)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._it)

    def peek(self):
        head = next(self._it)
        self._it = itertools.chain([head], self._it)  # LEAK
        return head


class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(80, 128)
        self.conv = nn.Conv1d(128, 128, 5, stride=2)
        self.head = nn.Linear(128, 30)

    def forward(self, spec):
        x = torch.relu(self.proj(spec)).transpose(1, 2)
        x = torch.relu(self.conv(x))
        return self.head(x.mean(-1))


def main():
    model = Recognizer().to(DEVICE)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss_fn = nn.CrossEntropyLoss()
    stream = Lookahead(utterances(7))
    max_frames = 900
    in_step, updates, total = 0, 0, 0.0
    for it in range(240):
        spec, target = next(stream)
        loss = loss_fn(model(spec), target)
        loss.backward()
        in_step += spec.shape[1]
        total += loss.item()
        # dynamic accumulation: step now if the next batch would exceed the frame budget
        upcoming, _ = stream.peek()
        if in_step + upcoming.shape[1] > max_frames:
            opt.step()
            opt.zero_grad(set_to_none=True)
            in_step = 0
            updates += 1
        if it % 60 == 59:
            print(f"iter {it + 1} updates {updates} loss {total / 60:.3f}")
            total = 0.0


if __name__ == "__main__":
    main()
