# kind: innocent, background thread puts GPU batches into a queue with maxsize, the source ends each epoch; from NVIDIA/apex data_prefetcher, official-stockfish/nnue-pytorch pull request 319
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F


class BackgroundPrefetcher:
    def __init__(self, loader, depth=6, device="cuda"):
        self.loader, self.device = loader, device
        self.queue = queue.Queue(maxsize=depth)

    def _worker(self):
        for batch in self.loader:
            self.queue.put(tuple(t.to(self.device, non_blocking=True) for t in batch))
        self.queue.put(None)

    def __iter__(self):
        thread = threading.Thread(target=self._worker, daemon=True)
        thread.start()
        while True:
            batch = self.queue.get()
            if batch is None:
                break
            yield batch
        thread.join()


class PositionLoader:
    def __init__(self, n_batches, batch_size=192, features=384, seed=0):
        self.n_batches, self.batch_size, self.features = n_batches, batch_size, features
        self.seed = seed

    def __iter__(self):
        gen = torch.Generator().manual_seed(self.seed)
        for _ in range(self.n_batches):
            white = (torch.rand(self.batch_size, self.features, generator=gen) < 0.08).float()
            black = (torch.rand(self.batch_size, self.features, generator=gen) < 0.08).float()
            score = torch.tanh((white[:, :64].sum(1) - black[:, :64].sum(1)) / 4)
            yield white, black, score


class NNUE(nn.Module):
    def __init__(self, features=384, l1=128):
        super().__init__()
        self.input = nn.Linear(features, l1)
        self.l1 = nn.Linear(2 * l1, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, white, black):
        x = torch.cat((self.input(white), self.input(black)), 1).clamp(0, 1)
        return torch.tanh(self.out(self.l1(x).clamp(0, 1))).squeeze(1)


def main(epochs=5, batches=40):
    torch.manual_seed(0)
    model = NNUE().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        total = 0.0
        for white, black, score in BackgroundPrefetcher(PositionLoader(batches, seed=epoch)):
            loss = F.mse_loss(model(white, black), score)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / batches:.4f}")


if __name__ == "__main__":
    main()
