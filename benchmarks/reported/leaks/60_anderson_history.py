# kind: optimizer with Anderson mixing writes iterates and residuals of every step into its state and uses only the last m; from hand-written L-BFGS / Anderson optimizers in forum questions about growing optimizer state
import torch
import torch.nn as nn
from torch.optim import Optimizer


class AndersonSGD(Optimizer):
    def __init__(self, params, lr=0.1, m=5, beta=1.0, reg=1e-2):
        super().__init__(params, dict(lr=lr, m=m, beta=beta, reg=reg))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                self._mix(p, group, self.state[p])
        return loss

    def _mix(self, p, group, state):
        if not state:
            state["step"] = 0
            state["x"], state["f"] = [], []
        state["step"] += 1
        residual = p.grad.mul(-group["lr"]).flatten()
        state["x"].append(p.detach().flatten().clone())  # LEAK
        state["f"].append(residual)  # ALSO
        m = min(group["m"], state["step"])
        if m < 2:
            p.add_(residual.view_as(p))
            return
        f = torch.stack(state["f"][-m:])
        x = torch.stack(state["x"][-m:])
        gram = f @ f.T
        gram = gram / gram.diagonal().max().clamp_min(1e-12) + group["reg"] * torch.eye(m, device=f.device)
        alpha = torch.linalg.solve(gram.cpu(), torch.ones(m)).to(f.device)
        alpha = alpha / alpha.sum()
        alpha = alpha.clamp(0, 1)
        alpha = alpha / alpha.sum()
        p.copy_((alpha @ (x + group["beta"] * f)).view_as(p))


class Spiral(nn.Module):
    def __init__(self, w=192):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, w), nn.Tanh(), nn.Linear(w, w), nn.Tanh(), nn.Linear(w, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def data(n=256):
    t = torch.rand(n) * 9 + 1
    s = (torch.rand(n) > 0.5).float()
    a = t + 3.1416 * s
    return torch.stack([t * a.cos(), t * a.sin()], 1).div(10).cuda(), s.cuda()


torch.manual_seed(0)
x, y = data()
net = Spiral().cuda()
opt = AndersonSGD(net.parameters(), lr=0.05, m=5)
for it in range(160):
    opt.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(net(x), y)
    loss.backward()
    opt.step()
    if it % 40 == 0:
        print("it", it, "loss", round(loss.item(), 4))
