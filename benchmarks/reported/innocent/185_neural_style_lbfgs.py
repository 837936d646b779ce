# kind: the history of L-BFGS fills; after ProGamerGov/neural-style-pt issue 7
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim


class GramMatrix(nn.Module):
    def forward(self, x):
        b, c, h, w = x.shape
        f = x.view(c, h * w)
        return f @ f.t() / (c * h * w)


class StyleLoss(nn.Module):
    def __init__(self, strength):
        super().__init__()
        self.strength, self.gram = strength, GramMatrix()
        self.target, self.mode = None, "capture"

    def forward(self, x):
        g = self.gram(x)
        if self.mode == "capture":
            self.target = g.detach()
        else:
            self.loss = self.strength * F.mse_loss(g, self.target)
        return x


class ContentLoss(nn.Module):
    def __init__(self, strength):
        super().__init__()
        self.strength = strength
        self.target, self.mode = None, "capture"

    def forward(self, x):
        if self.mode == "capture":
            self.target = x.detach()
        else:
            self.loss = self.strength * F.mse_loss(x, self.target)
        return x


def setup_optimizer(img, params):
    optim_state = {"max_iter": 1, "tolerance_change": -1, "tolerance_grad": -1}
    if params["lbfgs_num_correction"] > 0:
        optim_state["history_size"] = params["lbfgs_num_correction"]
    return optim.LBFGS([img], **optim_state)


def main():
    torch.manual_seed(0)
    params = {"lbfgs_num_correction": 30, "num_iterations": 120}
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), StyleLoss(1e2),
        nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), StyleLoss(1e2), ContentLoss(5.0)).cuda()
    for p in net.parameters():
        p.requires_grad_(False)
    losses = [m for m in net if isinstance(m, (StyleLoss, ContentLoss))]
    content, style = torch.rand(1, 3, 128, 128).cuda(), torch.rand(1, 3, 128, 128).cuda()
    net(style)
    for m in losses:
        m.mode = "none" if isinstance(m, StyleLoss) else "capture"
        if isinstance(m, StyleLoss):
            m.loss = 0
    net(content)
    for m in losses:
        m.mode = "loss"
    img = nn.Parameter(torch.randn(1, 3, 128, 128).cuda() * 0.001)
    optimizer = setup_optimizer(img, params)
    num_calls = [0]

    def feval():
        num_calls[0] += 1
        optimizer.zero_grad()
        net(img)
        loss = sum(m.loss for m in losses)
        loss.backward()
        return loss

    while num_calls[0] < params["num_iterations"]:
        loss = optimizer.step(feval)
        if num_calls[0] % 30 == 0:
            print("Iteration", num_calls[0], loss.item())


if __name__ == "__main__":
    main()
