# kind: catalogue of data sets, each round of self-training registers a lambda under a new name and the lambda has captured the round's pseudo-labelled images; from facebookresearch/detectron2 issues 922 / 1978 (DatasetCatalog.register with lambdas) and biparnakroy/pseudoLabelGeneratorForYOLO issue 4
import torch
from torch import nn
from torch.nn import functional as F


class _Catalog:
    def __init__(self):
        self._makers = {}

    def register(self, name, maker):
        assert callable(maker) and name not in self._makers, name
        self._makers[name] = maker

    def get(self, name):
        return self._makers[name]()


CATALOG = _Catalog()


class SmallCNN(nn.Module):
    def __init__(self, classes=8):
        super().__init__()
        self.c1 = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.c2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.fc = nn.Linear(32, classes)

    def forward(self, x):
        x = F.relu(self.c2(F.relu(self.c1(x))))
        return self.fc(x.mean(dim=(2, 3)))


def camera(round_no, n=40):
    g = torch.Generator().manual_seed(round_no)
    return torch.rand(n, 3, 40, 40, generator=g)


def register_round(net, round_no):
    images = camera(round_no).cuda()
    with torch.no_grad():
        confidence, labels = net(images).softmax(-1).max(-1)
    order = confidence.argsort(descending=True)[:24]
    chosen, targets = images[order], labels[order]
    name = f"pseudo_round_{round_no:04d}"
    CATALOG.register(name, lambda: list(zip(chosen, targets)))  # LEAK
    return name


def train_on(net, opt, name, batch=8):
    items = CATALOG.get(name)
    for i in range(0, len(items), batch):
        x = torch.stack([a for a, _ in items[i:i + batch]])
        y = torch.stack([b for _, b in items[i:i + batch]])
        loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()


def self_training(rounds):
    torch.manual_seed(0)
    net = SmallCNN().cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for r in range(rounds):
        train_on(net, opt, register_round(net, r))


if __name__ == "__main__":
    self_training(100)
