# kind: the fast weights of all inner steps with their graph pile up within a task and go with it, the number of inner steps is raised from one to eight; after facebookresearch/higher issue 114
import math
from contextlib import contextmanager

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(19)
dev = "cuda"


class FastModel:
    def __init__(self, module):
        self.module = module
        self.history = [dict(module.named_parameters())]

    def __call__(self, x):
        return functional_call(self.module, self.history[-1], (x,))

    def adapt(self, loss, lrs):
        current = self.history[-1]
        grads = torch.autograd.grad(loss, list(current.values()), create_graph=True)
        self.history.append({n: p - lrs[n] * g for (n, p), g in zip(current.items(), grads)})

    def trajectory_length(self):
        return sum((a[n] - b[n]).detach().norm().item()
                   for a, b in zip(self.history, self.history[1:]) for n in a)


@contextmanager
def innerloop(module):
    fast = FastModel(module)
    try:
        yield fast
    finally:
        fast.history.clear()


class SineTasks:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def sample(self, shots=32):
        amp, phase = torch.rand(2, generator=self.gen).tolist()
        x = torch.rand(2 * shots, 1, generator=self.gen) * 10 - 5
        y = (0.5 + 4 * amp) * torch.sin(x + math.pi * phase)
        x, y = x.to(dev), y.to(dev)
        return (x[:shots], y[:shots]), (x[shots:], y[shots:])


def main():
    net = nn.Sequential(nn.Linear(1, 320), nn.Tanh(), nn.Linear(320, 320), nn.Tanh(), nn.Linear(320, 1)).to(dev)
    lrs = {n: nn.Parameter(torch.tensor(0.005, device=dev)) for n, _ in net.named_parameters()}
    meta = torch.optim.Adam([*net.parameters(), *lrs.values()], lr=1e-3)
    tasks = SineTasks(3)
    for it in range(100):
        inner_steps = min(1 + it // 6, 8)
        (xs, ys), (xq, yq) = tasks.sample()
        with innerloop(net) as fast:
            for _ in range(inner_steps):
                fast.adapt(nn.functional.mse_loss(fast(xs), ys), lrs)
            query = nn.functional.mse_loss(fast(xq), yq)
            meta.zero_grad()
            query.backward()
            travelled = fast.trajectory_length()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        meta.step()
        if it % 20 == 19:
            print(f"iter {it + 1}: {inner_steps} inner steps, query loss {query.item():.3f}, moved {travelled:.3f}")


if __name__ == "__main__":
    main()
