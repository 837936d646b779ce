# kind: an exporter of training statistics keeps a bulk that the server refused for the next flush, from some size on it is refused as too large and only grows; after camunda/camunda issues 4668 and 51966
import random
import time
from collections import namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"
Document = namedtuple("Document", "step name values stamp")


class RequestEntityTooLarge(Exception):
    pass


class ServiceUnavailable(Exception):
    pass


class Index:
    """The search server of the monitoring stack. Down during its nightly restart."""

    limit = 48
    down = range(40, 70)

    def __init__(self):
        self.stored = 0

    def bulk(self, step, documents):
        if step in self.down:
            raise ServiceUnavailable("503")
        if len(documents) > self.limit:
            raise RequestEntityTooLarge("413 the payload is too large, cannot write batch")
        for document in documents:
            document.values.histc(bins=20).cpu()
        self.stored += len(documents)


class Exporter:
    def __init__(self, index, every=5):
        self.index = index
        self.every = every
        self.documents = []
        self.failures = 0

    def export(self, step, name, values):
        self.documents.append(Document(step, name, values.detach(), time.time()))  # LEAK

    def flush(self, step):
        if step % self.every:
            return
        try:
            self.index.bulk(step, self.documents)
        except (ServiceUnavailable, RequestEntityTooLarge) as error:
            self.failures += 1
            if self.failures % 8 == 1:
                print(f"step {step}: export failed, will be tried again ({error})")
            return
        self.documents.clear()


class Autoencoder(nn.Module):
    def __init__(self, dim=192):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(dim, 256), nn.GELU(), nn.Linear(256, 32))
        self.dec = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, dim))

    def forward(self, x):
        z = self.enc(x)
        return z, self.dec(z)


def readings(n=384, dim=192):
    phase = torch.rand(n, 1) * 6.28
    grid = torch.linspace(0, 12, dim)
    return (torch.sin(grid + phase) + 0.1 * torch.randn(n, dim)).to(DEVICE)


def main():
    torch.manual_seed(0)
    random.seed(0)
    model = Autoencoder().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    exporter = Exporter(Index())
    for step in range(1, 301):
        x = readings()
        z, y = model(x)
        error = (y - x).pow(2)
        loss = error.mean() + 1e-4 * z.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        exporter.export(step, "reconstruction_error", error)
        exporter.export(step, "code", z)
        exporter.flush(step)
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} documents stored {exporter.index.stored}")


if __name__ == "__main__":
    main()
