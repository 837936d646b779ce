# kind: https://discuss.pytorch.org/t/gpu-memory-gets-filled/8190: a quasi-Newton optimizer with a history of the last 40 steps
import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"


class StochasticLBFGS(torch.optim.Optimizer):
    """Two-loop recursion over the last `history` pairs, without line search."""

    def __init__(self, params, lr=0.1, history=40, damping=1e-3):
        super().__init__(params, dict(lr=lr, history=history, damping=damping))
        self.params = self.param_groups[0]["params"]

    def _flat_grad(self):
        return torch.cat([p.grad.reshape(-1) for p in self.params])

    def _direction(self, grad, dirs, diffs, damping):
        q = grad.clone()
        alphas = []
        for s, y in zip(reversed(dirs), reversed(diffs)):
            a = (s @ q) / ((s @ y) + damping)
            q.sub_(a * y)
            alphas.append(a)
        for s, y, a in zip(dirs, diffs, reversed(alphas)):
            b = (y @ q) / ((s @ y) + damping)
            q.add_((a - b) * s)
        return q

    @torch.no_grad()
    def step(self, closure=None):
        group = self.param_groups[0]
        state = self.state[self.params[0]]
        grad = self._flat_grad()
        dirs, diffs = state.setdefault("dirs", []), state.setdefault("diffs", [])
        if "grad" in state:
            if len(dirs) == group["history"]:
                dirs.pop(0)
                diffs.pop(0)
            dirs.append(state["move"])
            diffs.append(grad - state["grad"])
        move = -group["lr"] * self._direction(grad, dirs, diffs, group["damping"])
        offset = 0
        for p in self.params:
            p.add_(move[offset : offset + p.numel()].view_as(p))
            offset += p.numel()
        state["grad"], state["move"] = grad, move


class PINN(nn.Module):
    def __init__(self, width=128, depth=4):
        super().__init__()
        layers = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, xt):
        return self.net(xt)


def burgers(model, xt):
    u = model(xt)
    du = torch.autograd.grad(u.sum(), xt, create_graph=True)[0]
    uxx = torch.autograd.grad(du[:, 0].sum(), xt, create_graph=True)[0][:, :1]
    return du[:, 1:] + u * du[:, :1] - 0.01 / 3.1416 * uxx


def main():
    model = PINN().to(device)
    optimizer = StochasticLBFGS(model.parameters())
    for step in range(90):
        xt = torch.rand(512, 2, device=device).requires_grad_()
        edge = torch.rand(64, 2, device=device)
        loss = burgers(model, xt).square().mean() + model(edge).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"{step}: {loss.item():.5f} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
