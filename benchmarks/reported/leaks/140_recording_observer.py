# kind: a model prepared with RecordingObserver to look at activation ranges stays prepared for the whole evaluation, every layer output is cloned into the observer; after pytorch/pytorch PR 36701
import warnings

import torch
from torch import nn
from torch.ao.quantization import QConfig, default_weight_observer, prepare
from torch.ao.quantization.observer import RecordingObserver

warnings.filterwarnings("ignore")
torch.manual_seed(4)
device = "cuda"


class SmallNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.top = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.fc = nn.Linear(16, classes)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(self.mid(x))
        x = torch.relu(self.top(x))
        return self.fc(x.mean((2, 3)))


def batches(n, size, seed):
    gen = torch.Generator().manual_seed(seed)
    for _ in range(n):
        yield (torch.randn(size, 3, 64, 64, generator=gen).to(device),
               torch.randint(0, 10, (size,), generator=gen).to(device))


def train(net, steps):
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for x, y in batches(steps, 16, 1):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
    return loss.item()


@torch.no_grad()
def evaluate(net, n):
    hits = seen = 0
    for i, (x, y) in enumerate(batches(n, 32, 2)):
        logits = net(x)  # ALSO
        hits += (logits.argmax(1) == y).sum().item()
        seen += len(y)
        if i % 40 == 39:
            print(f"{seen} images, accuracy {hits / seen:.3f}")
    return hits / seen


def main():
    net = SmallNet().to(device)
    print("train loss", round(train(net, 60), 3))
    net.eval()
    net.qconfig = QConfig(activation=RecordingObserver, weight=default_weight_observer)  # ALSO
    observed = prepare(net)  # LEAK

    with torch.no_grad():
        for x, _ in batches(4, 16, 3):
            observed(x)
    for name, module in observed.named_modules():
        if isinstance(module, RecordingObserver):
            values = module.get_tensor_value()
            peak = max(v.abs().max().item() for v in values)
            print(f"{name:32s} abs max {peak:.3f} over {len(values)} batches")

    print("accuracy", evaluate(observed, 280))


if __name__ == "__main__":
    main()
