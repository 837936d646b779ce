# kind: gradient compression keeps its error feedback in a dict keyed by the gradient tensor, which is another one each step; from custom optimizers / comm hooks keyed by tensor
import torch
from torch import nn


class RandomKCompressor:
    def __init__(self, ratio=0.1):
        self.ratio = ratio
        self.error = {}
        self.sent = 0

    def __call__(self, grad):
        carried = self.error.get(grad)
        full = grad if carried is None else grad + carried
        keep = (torch.rand(full.shape) < self.ratio).to(full.device)
        out = torch.where(keep, full, torch.zeros_like(full))
        self.error[grad] = full - out  # LEAK
        self.sent += int(full.numel() * self.ratio)
        return out


class CompressedSGD(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9, compressor=None):
        super().__init__(params, dict(lr=lr, momentum=momentum))
        self.compressor = compressor or RandomKCompressor()

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                d = self.compressor(p.grad) if p.dim() > 1 else p.grad
                buf = self.state[p].get("momentum_buffer")
                if buf is None:
                    buf = self.state[p]["momentum_buffer"] = torch.zeros_like(p)
                buf.mul_(group["momentum"]).add_(d)
                p.add_(buf, alpha=-group["lr"])


class Recommender(nn.Module):
    def __init__(self, users=800, items=600, dim=64):
        super().__init__()
        self.u = nn.Embedding(users, dim)
        self.i = nn.Embedding(items, dim)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, u, i):
        return self.mlp(torch.cat([self.u(u), self.i(i)], dim=1)).squeeze(1)


def main():
    model = Recommender().cuda()
    opt = CompressedSGD(model.parameters(), lr=0.05)
    bce = nn.BCEWithLogitsLoss()
    for step in range(90):
        u = torch.randint(0, 800, (256,)).cuda()
        i = torch.randint(0, 600, (256,)).cuda()
        clicked = ((u + i) % 3 == 0).float()
        loss = bce(model(u, i), clicked)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 30 == 0:
            print(f"{step:3d} loss {loss.item():.4f} values sent {opt.compressor.sent}")


main()
