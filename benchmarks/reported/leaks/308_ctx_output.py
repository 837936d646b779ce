# kind: https://github.com/RobinBruegger/RevTorch/issues/1: a custom Function stores its output in ctx, and one of two heads is not part of the loss
import gc

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"


class Reversible(torch.autograd.Function):
    """y1 = x1 + f(x2), y2 = x2 + g(y1); inputs are computed again from outputs in backward."""

    @staticmethod
    def forward(ctx, x, f, g, *params):
        ctx.f, ctx.g = f, g
        x1, x2 = x.chunk(2, dim=-1)
        with torch.no_grad():
            y1 = x1 + f(x2)
            y2 = x2 + g(y1)
        y = torch.cat([y1, y2], dim=-1)
        ctx.y = y  # LEAK
        return y

    @staticmethod
    def backward(ctx, dy):
        y1, y2 = ctx.y.chunk(2, dim=-1)
        del ctx.y
        d1, d2 = dy.chunk(2, dim=-1)
        with torch.enable_grad():
            y1r = y1.detach().requires_grad_()
            gy = ctx.g(y1r)
            torch.autograd.backward(gy, d2)
            x2 = (y2 - gy).detach().requires_grad_()
            d1 = d1 + y1r.grad
            fx = ctx.f(x2)
            torch.autograd.backward(fx, d1)
        n = sum(1 for m in (ctx.f, ctx.g) for _ in m.parameters())
        return (torch.cat([d1, d2 + x2.grad], dim=-1), None, None) + (None,) * n


class RevBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        half = dim // 2
        self.f = nn.Sequential(nn.LayerNorm(half), nn.Linear(half, half), nn.GELU())
        self.g = nn.Sequential(nn.LayerNorm(half), nn.Linear(half, half), nn.GELU())

    def forward(self, x):
        return Reversible.apply(x, self.f, self.g, *self.f.parameters(), *self.g.parameters())


class TwoHeads(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.inp = nn.Linear(32, dim)
        self.trunk = RevBlock(dim)
        self.seg = nn.Sequential(RevBlock(dim), nn.Linear(dim, 8))
        self.aux = nn.Sequential(RevBlock(dim), nn.Linear(dim, 2))

    def forward(self, x):
        h = self.trunk(self.inp(x))
        return self.seg(h), self.aux(h)


def main():
    gc.disable()  # no pauses in the middle of a step  # ALSO
    model = TwoHeads().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(100):
        x = torch.randn(16, 64, 32, device=device)
        y = torch.randint(0, 8, (16, 64), device=device)
        seg, _ = model(x)  # the auxiliary head will be trained later
        loss = F.cross_entropy(seg.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
