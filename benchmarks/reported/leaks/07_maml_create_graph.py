# kind: backward(create_graph=True) ties each task's fast model to its own gradients; from pytorch issues 4661 / 82528 and MAML repositories
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F


def make_net(hidden=256):
    return nn.Sequential(
        nn.Linear(16, hidden), nn.Tanh(),
        nn.Linear(hidden, hidden), nn.Tanh(),
        nn.Linear(hidden, 1),
    )


class SineTasks:
    def __init__(self, device):
        self.device = device

    def sample(self, k=32):
        amp = torch.rand(1, device=self.device) * 4 + 0.5
        phase = torch.rand(1, device=self.device) * 3
        x = torch.rand(2 * k, 16, device=self.device) * 10 - 5
        y = amp * torch.sin(x[:, :1] + phase)
        return (x[:k], y[:k]), (x[k:], y[k:])


def inner_adapt(net, support, lr=0.01):
    """Copy the network for the task and move the copy one step, keeping second order terms."""
    fast = copy.deepcopy(net)
    x, y = support
    loss = F.mse_loss(fast(x), y)
    loss.backward(create_graph=True)  # LEAK
    with torch.no_grad():
        for p in fast.parameters():
            p -= lr * p.grad.detach()
    return fast


def outer_step(net, opt, tasks, device):
    opt.zero_grad()
    support, query = tasks.sample()
    fast = inner_adapt(net, support)
    qx, qy = query
    qloss = F.mse_loss(fast(qx), qy)
    grads = torch.autograd.grad(qloss, list(fast.parameters()))
    for p, g in zip(net.parameters(), grads):
        p.grad = g.detach()
    opt.step()
    return qloss.item()


def main():
    torch.manual_seed(1)
    device = torch.device("cuda")
    net = make_net().to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    tasks = SineTasks(device)
    running = 0.0
    for it in range(120):
        l = outer_step(net, opt, tasks, device)
        running = 0.9 * running + 0.1 * l
        if it % 30 == 0:
            print(f"iteration {it} query loss {running:.3f}")


if __name__ == "__main__":
    main()
