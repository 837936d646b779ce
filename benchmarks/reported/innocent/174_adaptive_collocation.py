# kind: rows for the collocation points with the largest residual are appended to the least-squares system of a random-feature PDE solver until its budget of points is used up, then only the solution is refined; after residual-based adaptive refinement in PINN code (DeepXDE-like)
import math

import torch

device = "cuda"
FEATURES = 640
BUDGET = 11400
ADD_PER_ROUND = 110
ROUNDS = 190


class RandomFeatures:
    def __init__(self):
        self.w = torch.randn(FEATURES, 2, device=device) * 5
        self.b = torch.rand(FEATURES, device=device) * 10 - 5
        self.scale = 1 / math.sqrt(FEATURES)

    def value(self, x):
        return torch.tanh(x @ self.w.t() + self.b) * self.scale

    def laplacian(self, x):
        t = torch.tanh(x @ self.w.t() + self.b)
        return -2 * t * (1 - t.square()) * self.w.square().sum(1) * self.scale


def source(x):
    peak = torch.exp(-120 * ((x - 0.35) ** 2).sum(1))
    return 40 * peak + torch.sin(3 * math.pi * x[:, 0]) * torch.sin(2 * math.pi * x[:, 1])


def boundary_points(n):
    s = torch.rand(n, device=device)
    zero, one = torch.zeros_like(s), torch.ones_like(s)
    edges = [(s, zero), (s, one), (zero, s), (one, s)]
    return torch.cat([torch.stack(e, dim=1) for e in edges])


class Solver:
    def __init__(self):
        self.basis = RandomFeatures()
        edge = boundary_points(120)
        self.rows = 50 * self.basis.value(edge)
        self.rhs = torch.zeros(len(edge), device=device)
        self.interior = 0
        self.coef = torch.zeros(FEATURES, device=device)

    def append(self, points):
        lap = -self.basis.laplacian(points)
        self.rows = torch.cat([self.rows, lap])
        self.rhs = torch.cat([self.rhs, source(points)])
        self.interior += len(points)

    def residual(self, points):
        return (-self.basis.laplacian(points) @ self.coef - source(points)).abs()

    def refine(self, iterations):
        ridge = 1e-6 * len(self.rhs)
        r = self.rows.t() @ (self.rhs - self.rows @ self.coef) - ridge * self.coef
        d, rr = r.clone(), r @ r
        for _ in range(iterations):
            q = self.rows.t() @ (self.rows @ d) + ridge * d
            alpha = rr / (d @ q + 1e-12)
            self.coef = self.coef + alpha * d
            r = r - alpha * q
            new = r @ r
            d, rr = r + (new / (rr + 1e-12)) * d, new
        return ((self.rows @ self.coef - self.rhs).square().mean()).sqrt().item()


def main():
    torch.manual_seed(23)
    solver = Solver()
    solver.append(torch.rand(400, 2, device=device))
    for i in range(ROUNDS):
        if solver.interior < BUDGET:
            candidates = torch.rand(1500, 2, device=device)
            take = min(ADD_PER_ROUND, BUDGET - solver.interior)
            worst = solver.residual(candidates).topk(take).indices
            solver.append(candidates[worst])
        rms = solver.refine(iterations=6)
        if i % 19 == 0:
            probe = solver.residual(torch.rand(1000, 2, device=device))
            print(f"round {i}: {solver.interior} points, rms {rms:.4f}, "
                  f"probe mean {probe.mean().item():.3f} max {probe.max().item():.3f}")


if __name__ == "__main__":
    main()
