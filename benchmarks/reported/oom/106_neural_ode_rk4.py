# CARD: 8GiB
# KNOBS: BATCH=128 STEP_SIZE=0.02 ADJOINT CHECKPOINT=ODEfunc AUTOCAST
# EXPERT: back-propagation through the rk4 solver keeps the activations of 4 evaluations of the ODE function for each of the 50 steps; the weights are tiny (144k); the adjoint method (odeint_adjoint), checkpointing the function, a larger step_size, a smaller batch
# after rtqichen/torchdiffeq issues 54 and 192 (https://github.com/rtqichen/torchdiffeq/issues/192), the network of examples/odenet_mnist.py
import argparse
import os

import torch
import torch.nn as nn

import knobs

parser = argparse.ArgumentParser()
parser.add_argument("--adjoint", type=eval, default=os.environ.get("ADJOINT") == "1", choices=[True, False])
parser.add_argument("--batch_size", type=int, default=int(os.environ.get("BATCH", 128)))
parser.add_argument("--step_size", type=float, default=float(os.environ.get("STEP_SIZE", 0.02)))
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()


def rk4_step(func, t, dt, y):
    k1 = func(t, y)
    k2 = func(t + dt / 3, y + dt * k1 / 3)
    k3 = func(t + dt * 2 / 3, y + dt * (k2 - k1 / 3))
    k4 = func(t + dt, y + dt * (k1 - k2 + k3))
    return y + (k1 + 3 * (k2 + k3) + k4) * dt * 0.125


def odeint(func, y0, t, step_size):
    n = max(1, round(abs(t[1] - t[0]) / step_size))
    dt = (t[1] - t[0]) / n
    y = y0
    for i in range(n):
        y = rk4_step(func, t[0] + i * dt, dt, y)
    return torch.stack([y0, y])


class OdeintAdjointMethod(torch.autograd.Function):
    @staticmethod
    def forward(ctx, func, y0, t, step_size, *params):
        ctx.func, ctx.t, ctx.step_size, ctx.params = func, t, step_size, params
        with torch.no_grad():
            ys = odeint(func, y0, t, step_size)
        ctx.save_for_backward(ys)
        return ys

    @staticmethod
    def backward(ctx, grad):
        ys, = ctx.saved_tensors
        func, params = ctx.func, ctx.params
        n = max(1, round(abs(ctx.t[1] - ctx.t[0]) / ctx.step_size))
        dt = -(ctx.t[1] - ctx.t[0]) / n
        y, a, gp = ys[1], grad[1], [torch.zeros_like(p) for p in params]
        for i in range(n):
            t = ctx.t[1] + i * dt

            def aug(t, y, a):
                with torch.enable_grad():
                    y = y.detach().requires_grad_(True)
                    f = func(t, y)
                    g = torch.autograd.grad(f, (y,) + params, -a, allow_unused=True)
                return f.detach(), g[0], g[1:]
            f, ga, g = aug(t, y, a)
            y, a = y + dt * f, a + dt * ga
            gp = [p + dt * q for p, q in zip(gp, g)]
        return (None, a + grad[0], None, None) + tuple(gp)


def odeint_adjoint(func, y0, t, step_size):
    return OdeintAdjointMethod.apply(func, y0, t, step_size, *func.parameters())


def norm(dim):
    return nn.GroupNorm(min(32, dim), dim)


class ConcatConv2d(nn.Module):
    def __init__(self, dim_in, dim_out, ksize=3, padding=1):
        super().__init__()
        self._layer = nn.Conv2d(dim_in + 1, dim_out, kernel_size=ksize, padding=padding)

    def forward(self, t, x):
        tt = torch.ones_like(x[:, :1, :, :]) * t
        return self._layer(torch.cat([tt, x], 1))


class ODEfunc(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = norm(dim), norm(dim), norm(dim)
        self.relu = nn.ReLU(inplace=True)
        self.conv1, self.conv2 = ConcatConv2d(dim, dim), ConcatConv2d(dim, dim)
        self.nfe = 0

    def forward(self, t, x):
        self.nfe += 1
        out = self.relu(self.norm1(x))
        out = self.conv1(t, out)
        out = self.relu(self.norm2(out))
        out = self.conv2(t, out)
        return self.norm3(out)


class ODEBlock(nn.Module):
    def __init__(self, odefunc):
        super().__init__()
        self.odefunc = odefunc

    def forward(self, x):
        solve = odeint_adjoint if args.adjoint else odeint
        return solve(self.odefunc, x, (0.0, 1.0), args.step_size)[1]


def main():
    downsampling = [nn.Conv2d(3, 64, 3, 1), norm(64), nn.ReLU(inplace=True), nn.Conv2d(64, 64, 4, 2, 1)]
    feature_layers = [ODEBlock(ODEfunc(64))]
    fc_layers = [norm(64), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(64, 10)]
    model = nn.Sequential(*downsampling, *feature_layers, *fc_layers).cuda()
    knobs.apply(model)
    print("Number of parameters:", sum(p.numel() for p in model.parameters()))
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for itr in range(args.steps):
        x = torch.randn(args.batch_size, 3, 32, 32).cuda()  # CIFAR10
        y = torch.randint(0, 10, (args.batch_size,)).cuda()
        optimizer.zero_grad()
        with knobs.autocast():
            logits = model(x)
        loss = criterion(logits.float(), y)
        nfe_forward = feature_layers[0].odefunc.nfe
        feature_layers[0].odefunc.nfe = 0
        loss.backward()
        optimizer.step()
        print(f"iter {itr} loss {loss.item():.4f} NFE-F {nfe_forward} NFE-B {feature_layers[0].odefunc.nfe}")
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
