# kind: Shampoo starts to collect statistics at step 30, tensor after tensor, and roots of them at step 60, so that its state appears late; from facebookresearch/optimizers and pytorch_optimizer questions about Shampoo memory
import torch
import torch.nn as nn


class Shampoo(torch.optim.Optimizer):
    def __init__(self, params, lr=0.05, momentum=0.9, start=30, precondition=60, every=20):
        super().__init__(params, dict(lr=lr, momentum=momentum, start=start, precondition=precondition, every=every))
        self.t = 0

    @staticmethod
    def root(m, power=-0.25):
        w, v = torch.linalg.eigh(m.cpu() + 1e-4 * torch.eye(len(m)))
        return ((v * w.clamp_min(1e-6) ** power) @ v.T).to(m.device)

    @torch.no_grad()
    def step(self):
        self.t += 1
        for g in self.param_groups:
            for i, p in enumerate(g["params"]):
                s, grad = self.state[p], p.grad
                if p.dim() == 2 and self.t >= g["start"] + 4 * i:
                    if "l" not in s:
                        s["l"] = torch.zeros(p.shape[0], p.shape[0], device=p.device)
                        s["r"] = torch.zeros(p.shape[1], p.shape[1], device=p.device)
                    s["l"].add_(grad @ grad.T)
                    s["r"].add_(grad.T @ grad)
                    if self.t >= g["precondition"]:
                        if "il" not in s or self.t % g["every"] == 0:
                            s["il"], s["ir"] = self.root(s["l"]), self.root(s["r"])
                        pre = s["il"] @ grad @ s["ir"]
                        grad = pre * (grad.norm() / pre.norm().clamp_min(1e-9))
                if "m" not in s:
                    s["m"] = torch.zeros_like(p)
                s["m"].mul_(g["momentum"]).add_(grad)
                p.add_(s["m"], alpha=-g["lr"])


def main():
    torch.manual_seed(0)
    dims = [40, 200, 240, 200, 240, 200, 8]
    net = nn.Sequential(*[m for a, b in zip(dims, dims[1:]) for m in (nn.Linear(a, b), nn.Tanh())][:-1]).cuda()
    opt = Shampoo(net.parameters())
    w = torch.randn(40, 8, device="cuda")
    for step in range(180):
        x = torch.randn(96, 40, device="cuda")
        loss = nn.functional.cross_entropy(net(x), (x @ w).argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 36 == 0:
            print("step", step, "loss %.3f" % loss.item(), "preconditioned", sum("il" in s for s in opt.state.values()))


main()
