# kind: the Gaussian process of a bandit extends its kernel matrix and Cholesky factor by each observation, so they grow quadratically, until the budget of points makes the oldest go; after cornellius-gp/gpytorch PR 436
import torch

torch.manual_seed(20)
torch.set_default_dtype(torch.float32)
dev = "cuda"


def rbf(a, b, lengthscale=0.8):
    return torch.exp(-torch.cdist(a, b).square() / (2 * lengthscale ** 2))


class OnlineGP:
    def __init__(self, dim, budget, noise=0.05):
        self.x = torch.empty(0, dim, device=dev)
        self.y = torch.empty(0, device=dev)
        self.kernel = torch.empty(0, 0, device=dev)
        self.chol = torch.empty(0, 0, device=dev)
        self.budget, self.noise = budget, noise

    def add(self, x, y):
        n, m = len(self.x), len(x)
        cross = rbf(self.x, x)
        own = rbf(x, x) + self.noise * torch.eye(m, device=dev)
        kernel = torch.empty(n + m, n + m, device=dev)
        kernel[:n, :n] = self.kernel
        kernel[:n, n:] = cross
        kernel[n:, :n] = cross.T
        kernel[n:, n:] = own
        self.x, self.y = torch.cat([self.x, x]), torch.cat([self.y, y])
        if n + m > self.budget:
            keep = slice(n + m - self.budget, None)
            self.x, self.y = self.x[keep].clone(), self.y[keep].clone()
            self.kernel = kernel[keep, keep].contiguous()
            self.chol = torch.linalg.cholesky(self.kernel)
            return
        chol = torch.zeros(n + m, n + m, device=dev)
        chol[:n, :n] = self.chol
        if n:
            low = torch.linalg.solve_triangular(self.chol, cross, upper=False).T
            chol[n:, :n] = low
            own = own - low @ low.T
        chol[n:, n:] = torch.linalg.cholesky(own)
        self.kernel, self.chol = kernel, chol

    def posterior(self, candidates):
        k = rbf(self.x, candidates)
        alpha = torch.cholesky_solve(self.y[:, None], self.chol)
        v = torch.linalg.solve_triangular(self.chol, k, upper=False)
        return (k.T @ alpha).squeeze(-1), (1 - v.square().sum(0)).clamp(min=1e-6).sqrt()


def reward(x, t):
    centre = torch.tensor([0.5, -0.3, 0.1, 0.7], device=dev) * torch.cos(torch.tensor(t / 120.0)).item()
    return torch.exp(-(x - centre).square().sum(-1)) + 0.05 * torch.randn(len(x), device=dev)


def main():
    gp = OnlineGP(dim=4, budget=900)
    start = torch.rand(12, 4, device=dev) * 2 - 1
    gp.add(start, reward(start, 0))
    total = 0.0
    for t in range(200):
        candidates = torch.rand(200, 4, device=dev) * 2 - 1
        mean, std = gp.posterior(candidates)
        chosen = candidates[(mean + 2.0 * std).topk(15).indices]
        y = reward(chosen, t)
        gp.add(chosen, y)
        total += y.mean().item()
        if t % 26 == 25:
            print(f"round {t + 1}: {len(gp.x)} points, mean reward {total / (t + 1):.3f}")


if __name__ == "__main__":
    main()
