# kind: an implicit solver's Function keeps its module on ctx while the module keeps the further processed solution, a cycle through the C++ graph for every fitted scene; after pytorch/pytorch issue 52140
import gc

import torch
from torch import nn

torch.manual_seed(3)


class FixedPoint(torch.autograd.Function):
    """z* = f(z*, x); the gradient uses a truncated Neumann series."""

    @staticmethod
    def forward(ctx, layer, x, weight):
        ctx.layer = layer  # ALSO
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(layer.iterations):
                z = layer.step(z, x)
        ctx.save_for_backward(z.clone(), x, weight)
        return z

    @staticmethod
    def backward(ctx, grad):
        z, x, weight = ctx.saved_tensors
        layer = ctx.layer
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            x_ = x.detach().requires_grad_()
            f = layer.step(z, x_)
            v = grad
            for _ in range(layer.iterations):
                v = grad + torch.autograd.grad(f, z, v, retain_graph=True)[0]
            gx, gw = torch.autograd.grad(f, (x_, layer.weight), v)
        return None, gx, gw


class SceneField(nn.Module):
    def __init__(self, size=192, iterations=3):
        super().__init__()
        self.iterations = iterations
        self.weight = nn.Parameter(torch.randn(size, size) * 0.3 / size ** 0.5)
        self.gain = nn.Parameter(torch.ones(1))
        self.solution = None

    def step(self, z, x):
        return torch.tanh(z @ self.weight + x)

    def forward(self, x):
        z = FixedPoint.apply(self, x, self.weight)
        self.solution = z * self.gain  # LEAK
        return self.solution


def fit_scene(points, colors, steps):
    field = SceneField().cuda()
    opt = torch.optim.Adam(field.parameters(), lr=1e-3)
    for _ in range(steps):
        opt.zero_grad()
        loss = (field(points) - colors).pow(2).mean()
        loss.backward()
        opt.step()
    with torch.no_grad():
        residual = (field.solution - field.step(field.solution, points)).norm().item()
    return loss.item(), residual


def main():
    gen = torch.Generator().manual_seed(11)
    results = []
    for scene in range(64):
        points = torch.randn(1400, 192, generator=gen).cuda()
        colors = torch.randn(1400, 192, generator=gen).cuda() * 0.1
        results.append(fit_scene(points, colors, steps=2))
        gc.collect()
        if scene % 16 == 15:
            loss, residual = results[-1]
            print(f"scene {scene + 1}: loss {loss:.4f} residual {residual:.3f}")


if __name__ == "__main__":
    main()
