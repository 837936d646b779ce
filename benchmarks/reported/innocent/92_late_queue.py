# kind: SwAV's queue of features does not exist until a quarter of the epochs are over, fills for some epochs and then the oldest features make room; from facebookresearch/swav issue 37 (queue for small batches) and lightly-ai/lightly PRs 1019 / 1046
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self, dim=128, prototypes=300):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.proj = nn.Linear(256, dim)
        self.prototypes = nn.Linear(dim, prototypes, bias=False)

    def forward(self, x):
        z = F.normalize(self.proj(self.trunk(x)), dim=-1)
        return z, self.prototypes(z)


@torch.no_grad()
def sinkhorn(scores, iterations=3, eps=0.05):
    q = torch.exp(scores / eps - (scores / eps).max()).t()
    q /= q.sum()
    for _ in range(iterations):
        q /= q.sum(1, keepdim=True) * q.shape[0]
        q /= q.sum(0, keepdim=True) * q.shape[1]
    return (q * q.shape[1]).t()


class Swav:
    def __init__(self, start_epoch, length):
        self.net = Net().cuda()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.start_epoch, self.length = start_epoch, length
        self.queues = None

    def push(self, views):
        for v, z in enumerate(views):
            old = self.queues[v]
            self.queues[v] = torch.cat([z.detach().repeat_interleave(8, 0), old])[:self.length]

    def assign(self, v, z, scores):
        if self.queues is not None and len(self.queues[v]) >= 512:
            scores = torch.cat([self.net.prototypes(self.queues[v][:1024]), scores])
        return sinkhorn(scores.detach())[-len(z):]

    def epoch(self, number, steps=15):
        if number == self.start_epoch:
            self.queues = [torch.empty(0, 128, device="cuda") for _ in range(2)]
        for _ in range(steps):
            image = torch.rand(24, 3, 32, 32, device="cuda")
            outs = [self.net(image + 0.1 * torch.randn_like(image)) for _ in range(2)]
            codes = [self.assign(v, *o) for v, o in enumerate(outs)]
            loss = -sum((codes[v] * F.log_softmax(outs[1 - v][1] / 0.1, -1)).sum(-1).mean() for v in range(2))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if self.queues is not None:
                self.push([z for z, _ in outs])


if __name__ == "__main__":
    torch.manual_seed(0)
    method = Swav(start_epoch=4, length=15 * 4 * 24 * 8)
    for e in range(16):
        method.epoch(e)
