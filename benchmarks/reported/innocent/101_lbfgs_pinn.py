# kind: innocent, LBFGS history of 40 pairs fills up during the first steps; from maziarraissi/PINNs style PyTorch ports, torch.optim.LBFGS
import math

import torch
import torch.nn as nn


class PINN(nn.Module):
    def __init__(self, width=64, depth=3):
        super().__init__()
        dims = [2] + [width] * depth + [1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims, dims[1:]))

    def forward(self, x, t):
        h = torch.cat((x, t), 1)
        for layer in self.layers[:-1]:
            h = torch.tanh(layer(h))
        return self.layers[-1](h)


class HeatEquationSolver:
    def __init__(self, n_f=200, n_u=60, alpha=0.1):
        self.net = PINN().cuda()
        self.alpha = alpha
        self.x_f = torch.rand(n_f, 1, device="cuda").requires_grad_()
        self.t_f = torch.rand(n_f, 1, device="cuda").requires_grad_()
        self.x_0 = torch.rand(n_u, 1, device="cuda")
        self.u_0 = torch.sin(math.pi * self.x_0)
        self.t_b = torch.rand(n_u, 1, device="cuda")
        self.optimizer = torch.optim.LBFGS(self.net.parameters(), lr=0.5, max_iter=1, history_size=40)
        self.iter = 0

    def residual(self):
        u = self.net(self.x_f, self.t_f)
        ones = torch.ones_like(u)
        u_t, u_x = torch.autograd.grad(u, (self.t_f, self.x_f), ones, create_graph=True)
        u_xx = torch.autograd.grad(u_x, self.x_f, ones, create_graph=True)[0]
        return u_t - self.alpha * u_xx

    def closure(self):
        self.optimizer.zero_grad()
        zeros = torch.zeros_like(self.t_b)
        loss_ic = (self.net(self.x_0, torch.zeros_like(self.x_0)) - self.u_0).pow(2).mean()
        loss_bc = self.net(zeros, self.t_b).pow(2).mean() + self.net(zeros + 1, self.t_b).pow(2).mean()
        loss = loss_ic + loss_bc + self.residual().pow(2).mean()
        loss.backward()
        return loss

    def train(self, n_steps):
        for _ in range(n_steps):
            loss = self.optimizer.step(self.closure)
            self.iter += 1
            if self.iter % 30 == 0:
                print(f"it {self.iter} loss {loss.item():.5f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    HeatEquationSolver().train(120)
