# kind: SWAG collects a row of deviations from the averaged weights every few steps up to rank 12, afterwards the oldest row goes for the new one; from wjmaddox/swa_gaussian issue 22 (low-rank covariance matrix of a ResNet) and lightning-uq-box PR 15
import torch
from torch import nn


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(24, 48, 3, 2, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(48 * 36, 160), nn.ReLU(), nn.Linear(160, 10),
        )

    def forward(self, x):
        return self.f(x)


def flatten(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


class SWAG(nn.Module):
    def __init__(self, num_params, max_rank, device):
        super().__init__()
        self.max_rank = max_rank
        self.n = 0
        self.register_buffer("mean", torch.zeros(num_params, device=device))
        self.register_buffer("square", torch.zeros(num_params, device=device))
        self.register_buffer("deviations", torch.empty(0, num_params, device=device))

    def collect(self, w):
        self.mean.mul_(self.n / (self.n + 1)).add_(w / (self.n + 1))
        self.square.mul_(self.n / (self.n + 1)).add_(w * w / (self.n + 1))
        row = (w - self.mean).unsqueeze(0)
        self.deviations = torch.cat([self.deviations[-(self.max_rank - 1):], row])
        self.n += 1

    def sample(self, scale=0.5):
        diagonal = (self.square - self.mean ** 2).clamp(min=1e-12).sqrt()
        k = max(len(self.deviations) - 1, 1)
        low = torch.randn(len(self.deviations), device=self.mean.device) @ self.deviations / (2 * k) ** 0.5
        return self.mean + scale * (diagonal * torch.randn_like(diagonal) / 2 ** 0.5 + low)


def load_flat(module, w):
    at = 0
    for p in module.parameters():
        p.data.copy_(w[at:at + p.numel()].view_as(p))
        at += p.numel()


def main():
    torch.manual_seed(0)
    net = Backbone().cuda()
    sampled = Backbone().cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    swag = SWAG(flatten(net).numel(), 12, "cuda")
    spread = []
    for step in range(250):
        x = torch.rand(16, 3, 24, 24, device="cuda")
        y = torch.randint(0, 10, (16,), device="cuda")
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step >= 20 and step % 8 == 0:
            swag.collect(flatten(net))
        if step % 50 == 49:
            outs = []
            for _ in range(3):
                load_flat(sampled, swag.sample())
                with torch.no_grad():
                    outs.append(sampled(x).softmax(-1))
            spread.append(float(torch.stack(outs).std(0).mean()))


if __name__ == "__main__":
    main()
