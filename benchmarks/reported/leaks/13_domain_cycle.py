# kind: itertools.cycle over an endless loader saves each batch it has handed out; from pytorch issue 23900 and domain-adaptation code
from itertools import cycle
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    """Endless synthetic domain, a new sample each time."""

    def __init__(self, shift):
        self.shift = shift

    def __iter__(self):
        while True:
            x = torch.randn(3, 32, 32) + self.shift
            yield x, int(x.mean() > self.shift)


class CudaLoader:
    def __init__(self, loader, device):
        self.loader, self.device = loader, device

    def __iter__(self):
        for x, y in self.loader:
            yield x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)


class ReverseGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lam):
        ctx.lam = lam
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.lam * g, None


def main(iters=100, bs=64):
    device = torch.device("cuda")
    source = CudaLoader(DataLoader(Stream(0.0), batch_size=bs), device)
    target = CudaLoader(DataLoader(Stream(0.5), batch_size=bs), device)

    feat = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 7 * 7, 64)).to(device)
    label, domain = nn.Linear(64, 2).to(device), nn.Linear(64, 2).to(device)
    params = [*feat.parameters(), *label.parameters(), *domain.parameters()]
    opt = torch.optim.SGD(params, lr=0.003, momentum=0.9)
    ce = nn.CrossEntropyLoss()

    # the target set is the shorter one, start it again when it ends
    target_iter = cycle(target)  # LEAK
    source_iter = iter(source)
    for it in range(iters):
        xs, ys = next(source_iter)
        xt, _ = next(target_iter)  # ALSO
        fs, ft = feat(xs), feat(xt)
        lam = 0.1 * it / iters
        dom = torch.cat([ReverseGrad.apply(fs, lam), ReverseGrad.apply(ft, lam)])
        dlab = torch.cat([torch.zeros(bs), torch.ones(bs)]).long().to(device)
        loss = ce(label(fs), ys) + ce(domain(dom), dlab)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 20 == 0:
            print(f"{it:4d} total {loss.item():.3f}")


if __name__ == "__main__":
    main()
