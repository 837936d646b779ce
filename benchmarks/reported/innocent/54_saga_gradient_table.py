# kind: SAGA optimizer stores the last gradient of each minibatch, the table fills in the first pass and is overwritten in later ones; from variance reduction repositories and forum questions about SVRG/SAGA memory
import torch
import torch.nn as nn


class SAGA(torch.optim.Optimizer):
    def __init__(self, params, lr, n):
        super().__init__(params, dict(lr=lr, n=n))

    @torch.no_grad()
    def step(self, j):
        for g in self.param_groups:
            for p in g["params"]:
                s = self.state[p]
                if not s:
                    s["table"], s["mean"] = {}, torch.zeros_like(p)
                old = s["table"].get(j)
                d = p.grad - old if old is not None else p.grad
                p.add_(d + s["mean"], alpha=-g["lr"])
                s["mean"].add_(p.grad - (old if old is not None else 0), alpha=1 / g["n"])
                s["table"][j] = p.grad.clone()


def problem(batches=45, size=64):
    g = torch.Generator().manual_seed(0)
    w = torch.randn(50, generator=g)
    xs = torch.randn(batches, size, 50, generator=g)
    return xs, (xs @ w > 0).float()


def main():
    torch.manual_seed(0)
    xs, ys = problem()
    net = nn.Sequential(nn.Linear(50, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1)).cuda()
    opt = SAGA(net.parameters(), lr=0.05, n=len(xs))
    order = torch.Generator().manual_seed(1)
    for epoch in range(4):
        total = 0.0
        for j in torch.randperm(len(xs), generator=order).tolist():
            out = net(xs[j].cuda()).squeeze(-1)
            loss = nn.functional.binary_cross_entropy_with_logits(out, ys[j].cuda())
            opt.zero_grad()
            loss.backward()
            opt.step(j)
            total += loss.item()
        print("epoch", epoch, "loss %.4f" % (total / len(xs)))


main()
