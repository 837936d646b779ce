# kind: metric with list states reset after every epoch, rises in the epoch and falls back; from torchmetrics issue 1949 (documented use)
import torch
from torch import nn


class Metric:
    def __init__(self):
        self._defaults = {}

    def add_state(self, name, default):
        self._defaults[name] = default
        setattr(self, name, list(default) if isinstance(default, list) else default)

    def reset(self):
        for name, default in self._defaults.items():
            setattr(self, name, list(default) if isinstance(default, list) else default)


class RetrievalRecall(Metric):
    def __init__(self, k=5):
        super().__init__()
        self.k = k
        self.add_state("query", [])
        self.add_state("doc", [])

    def update(self, q, d):
        self.query.append(q.detach())
        self.doc.append(d.detach())

    def compute(self):
        q, d = torch.cat(self.query), torch.cat(self.doc)
        sims = q @ d.T
        top = sims.topk(self.k, dim=1).indices
        return (top == torch.arange(len(q), device=q.device)[:, None]).any(1).float().mean().item()


class TwoTower(nn.Module):
    def __init__(self, d_in=64, dim=256):
        super().__init__()
        self.q, self.d = nn.Linear(d_in, dim), nn.Linear(d_in, dim)
        self.recall = RetrievalRecall()

    def training_step(self, batch):
        a, b = batch
        q = nn.functional.normalize(self.q(a), dim=1)
        d = nn.functional.normalize(self.d(b), dim=1)
        self.recall.update(q, d)
        logits = q @ d.T / 0.07
        return nn.functional.cross_entropy(logits, torch.arange(len(a), device=a.device))

    def on_epoch_end(self, epoch):
        print(f"epoch {epoch} recall@5 {self.recall.compute():.3f}")
        self.recall.reset()


class Trainer:
    def __init__(self, epochs, steps, lr=1e-2):
        self.epochs, self.steps, self.lr = epochs, steps, lr

    def fit(self, model):
        device = next(model.parameters()).device
        opt = torch.optim.Adam(model.parameters(), lr=self.lr)
        for epoch in range(self.epochs):
            for _ in range(self.steps):
                x = torch.randn(192, 64, device=device)
                loss = model.training_step((x, x + 2.0 * torch.randn_like(x)))
                opt.zero_grad()
                loss.backward()
                opt.step()
            model.on_epoch_end(epoch)


Trainer(epochs=6, steps=20).fit(TwoTower().cuda())
