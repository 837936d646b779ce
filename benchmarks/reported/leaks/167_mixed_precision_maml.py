# kind: one autocast region spans the whole run, its cache of low-precision casts keeps the fast weights of each inner step (new leaf tensors) until the region is left; after ecmwf/anemoi-core issue 134 and pytorch/pytorch issue 48049
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

DEVICE = "cuda"
TASKS = 90
INNER_STEPS = 2
INNER_LR = 0.02
META_LR = 0.2


class Regressor(nn.Module):
    def __init__(self, features=64, hidden=256):
        super().__init__()
        self.register_buffer("freq", torch.randn(1, features // 2))
        self.l1 = nn.Linear(features, hidden)
        self.l2 = nn.Linear(hidden, hidden)
        self.l3 = nn.Linear(hidden, 1)

    def forward(self, x):
        phase = x @ self.freq
        h = torch.cat((phase.sin(), phase.cos()), -1)
        h = F.gelu(self.l1(h))
        h = F.gelu(self.l2(h))
        return self.l3(h)


def sample_task(generator, shots=20):
    """Sine waves with random amplitude and phase: support and query set."""
    amplitude = 0.5 + 4.5 * torch.rand(1, generator=generator).item()
    phase = math.pi * torch.rand(1, generator=generator).item()
    x = 10 * torch.rand(2 * shots, 1, generator=generator) - 5
    y = amplitude * torch.sin(x + phase)
    x, y = x.to(DEVICE), y.to(DEVICE)
    return (x[:shots], y[:shots]), (x[shots:], y[shots:])


def adapt(model, support, steps):
    x, y = support
    fast = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    for _ in range(steps):
        prediction = functional_call(model, fast, (x,))  # ALSO
        loss = F.mse_loss(prediction.float(), y)
        grads = torch.autograd.grad(loss, list(fast.values()))
        fast = {
            name: (w - INNER_LR * g).detach().requires_grad_()
            for (name, w), g in zip(fast.items(), grads)
        }
    return fast


@torch.no_grad()
def move_towards(model, fast, rate):
    """Reptile: the initialisation takes a step in the direction of the adapted weights."""
    for name, p in model.named_parameters():
        p.lerp_(fast[name], rate)


@torch.no_grad()
def query_error(model, fast, query):
    x, y = query
    prediction = functional_call(model, fast, (x,))  # ALSO
    return F.mse_loss(prediction.float(), y).item()


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(7)
    model = Regressor().to(DEVICE)
    smoothed = None
    with torch.autocast("cuda", dtype=torch.bfloat16):  # LEAK
        for task in range(1, TASKS + 1):
            support, query = sample_task(generator)
            fast = adapt(model, support, INNER_STEPS)
            error = query_error(model, fast, query)
            move_towards(model, fast, META_LR * (1 - task / TASKS))
            smoothed = error if smoothed is None else 0.95 * smoothed + 0.05 * error
            if task % 15 == 0:
                print(f"task {task:3d}  error after adaptation {smoothed:.3f}")


if __name__ == "__main__":
    main()
