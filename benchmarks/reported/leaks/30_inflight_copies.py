# kind: copies on a side stream are remembered together with their event and never reaped; from reports on record_stream and too many operations in flight
from collections import namedtuple
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

InFlight = namedtuple("InFlight", ["event", "tensors"])


class Clips(Dataset):
    def __init__(self, n=400, t=8, d=64):
        self.n, self.t, self.d = n, t, d

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(self.t, self.d, self.d, generator=g), i % 5


class StreamLoader:
    """Uploads the next batch on its own stream. The tensors are held until the copy has finished,
    otherwise the allocator could give their memory away."""

    def __init__(self, loader, device):
        self.loader, self.device = loader, device
        self.stream = torch.cuda.Stream(device)
        self.inflight = []

    def _upload(self, batch):
        with torch.cuda.stream(self.stream):
            tensors = [t.to(self.device, non_blocking=True) for t in batch]
            done = torch.cuda.Event()
            done.record(self.stream)
        self.inflight.append(InFlight(done, tensors))  # LEAK
        return done, tensors

    def reap(self):
        self.inflight = [f for f in self.inflight if not f.event.query()]

    def __iter__(self):
        ahead = None
        for batch in self.loader:
            cur, ahead = ahead, self._upload(batch)
            if cur is not None:
                torch.cuda.current_stream().wait_event(cur[0])
                yield cur[1]
        torch.cuda.current_stream().wait_event(ahead[0])
        yield ahead[1]


class C3(nn.Module):
    def __init__(self, t=8, classes=5):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(t, 16, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.cls = nn.Linear(64, classes)

    def forward(self, x):
        return self.cls(self.f(x))


if __name__ == "__main__":
    dev = torch.device("cuda", 0)
    model = C3().to(dev)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sched = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)
    data = StreamLoader(DataLoader(Clips(), batch_size=8, shuffle=True), dev)
    for epoch in range(3):
        for i, (x, y) in enumerate(data):
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        sched.step()
        print("epoch", epoch, "batches", i + 1, "loss", loss.item())
