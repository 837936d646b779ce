# kind: adjoint of a heat equation with stored states; why it is none: the states of a forward sweep are popped one by one by the backward sweep
import torch


class HeatControl:
    def __init__(self, n=64, steps=40, every=8):
        self.n, self.steps, self.every = n, steps, every
        self.log_k = torch.zeros(n, n, device="cuda")
        self.tape = []

    def step(self, u, log_k):
        k = log_k.exp() * 0.15
        lap = torch.roll(u, 1, 0) + torch.roll(u, -1, 0) + torch.roll(u, 1, 1) + torch.roll(u, -1, 1) - 4 * u
        return u + k * lap

    def forward(self, u):
        with torch.no_grad():
            for t in range(self.steps):
                if t % self.every == 0:
                    self.tape.append(u.clone())
                u = self.step(u, self.log_k)
        return u

    def adjoint(self, lam):
        total = torch.zeros_like(self.log_k)
        while self.tape:
            u = self.tape.pop().requires_grad_(True)
            k = self.log_k.detach().requires_grad_(True)
            v = u
            for _ in range(self.every):
                v = self.step(v, k)
            lam, g = torch.autograd.grad(v, (u, k), lam)
            total += g
        return total


def identify(iterations=100):
    torch.manual_seed(0)
    problem = HeatControl()
    u0 = torch.rand(64, 64, device="cuda")
    truth = HeatControl()
    truth.log_k = 0.5 * torch.sin(torch.linspace(0, 6, 64, device="cuda"))[:, None].expand(64, 64).contiguous()
    target = truth.forward(u0)
    truth.tape.clear()
    for it in range(iterations):
        diff = problem.forward(u0) - target
        problem.log_k = problem.log_k - 0.5 * problem.adjoint(diff)
    return diff.pow(2).mean().item()


print(identify())
