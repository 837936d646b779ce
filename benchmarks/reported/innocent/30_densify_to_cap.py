# kind: points are split until a cap is reached in the first part of training, optimizer state moves along; from gaussian splatting memory questions
import torch
from torch import nn


class Points(nn.Module):
    def __init__(self, n, dim, cap):
        super().__init__()
        self.pos = nn.Parameter(torch.randn(n, 3))
        self.feat = nn.Parameter(0.1 * torch.randn(n, dim))
        self.cap = cap

    def __len__(self):
        return self.pos.shape[0]

    def forward(self, rays):
        w = torch.softmax(-torch.cdist(rays, self.pos), dim=1)
        return w @ self.feat


def extend(opt, model, name, extra):
    old = getattr(model, name)
    new = nn.Parameter(torch.cat([old.detach(), extra]))
    state = opt.state.pop(old, {})
    for k, v in state.items():
        if torch.is_tensor(v) and v.shape == old.shape:
            state[k] = torch.cat([v, torch.zeros_like(extra)])
    for group in opt.param_groups:
        group["params"] = [new if p is old else p for p in group["params"]]
    opt.state[new] = state
    setattr(model, name, new)


@torch.no_grad()
def densify(opt, model, grow=512):
    k = min(grow, model.cap - len(model))
    if k <= 0:
        return 0
    pick = torch.randperm(len(model))[:k].to(model.pos.device)
    pos = model.pos[pick] + 0.01 * torch.randn(k, 3, device=model.pos.device)
    feat = model.feat[pick].clone()
    extend(opt, model, "pos", pos)
    extend(opt, model, "feat", feat)
    return k


def train(iters=220):
    model = Points(1024, 96, cap=5120).to("cuda")
    opt = torch.optim.Adam([{"params": [model.pos], "lr": 1e-3}, {"params": [model.feat], "lr": 5e-3}])
    for it in range(iters):
        rays = torch.randn(48, 3, device="cuda")
        loss = (model(rays) - rays.sin().sum(1, keepdim=True)).abs().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if it % 10 == 9 and it < 150:
            densify(opt, model)
        if it % 44 == 0:
            print(f"it {it}: {len(model)} points, loss {loss.item():.4f}")


train()
