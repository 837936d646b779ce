# kind: the custom autograd function of an unrolled sparse coder puts its own output on ctx as an attribute instead of into save_for_backward(), the output's grad_fn is that ctx, a cycle through C++ that stays after the backward pass; after pytorch/pytorch issues 25340 / 5569 and pyro-ppl/pyro PR 1049
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SoftShrink(torch.autograd.Function):
    """Proximal step of the l1 norm with a learned threshold per atom."""

    @staticmethod
    def forward(ctx, u, threshold):
        t = threshold.view(1, -1, 1, 1).clamp(min=0)
        z = torch.sign(u) * torch.relu(u.abs() - t)
        ctx.code = z  # LEAK
        ctx.atoms = threshold.numel()
        return z

    @staticmethod
    def backward(ctx, grad):
        active = ctx.code != 0
        gu = grad * active
        gt = -(gu * torch.sign(ctx.code)).sum(dim=(0, 2, 3))
        assert gt.numel() == ctx.atoms
        return gu, gt


def shrink(u, threshold):
    return SoftShrink.apply(u, threshold)


class Lista(nn.Module):
    """Learned iterative shrinkage over convolutional dictionaries."""

    def __init__(self, atoms=12, size=7, unfoldings=3):
        super().__init__()
        self.analysis = nn.Conv2d(1, atoms, size, padding=size // 2, bias=False)
        self.synthesis = nn.Conv2d(atoms, 1, size, padding=size // 2, bias=False)
        self.thresholds = nn.ParameterList(nn.Parameter(torch.full((atoms,), 0.02)) for _ in range(unfoldings))
        nn.init.normal_(self.analysis.weight, std=1 / size)
        with torch.no_grad():
            self.synthesis.weight.copy_(self.analysis.weight.transpose(0, 1).flip(-1, -2) / atoms)

    def forward(self, y):
        z = shrink(self.analysis(y), self.thresholds[0])
        for threshold in self.thresholds[1:]:
            residual = y - self.synthesis(z)
            z = shrink(z + self.analysis(residual), threshold)
        return self.synthesis(z), z


def psnr(a, b):
    return -10 * math.log10(F.mse_loss(a, b).item() + 1e-12)


def textures(batch, side=56):
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    while True:
        f = 0.1 + 0.5 * torch.rand(batch, 2, 1, 1)
        phase = 6.28 * torch.rand(batch, 1, 1)
        yield torch.sin(f[:, 0] * x + f[:, 1] * y + phase).unsqueeze(1)


def train(steps, sigma=0.3):
    net = Lista().cuda()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for step, clean in zip(range(steps), textures(4)):
        clean = clean.cuda()
        noisy = clean + sigma * torch.randn_like(clean)
        restored, code = net(noisy)
        loss = F.mse_loss(restored, clean) + 1e-4 * code.abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 15 == 0:
            print(f"{step}: psnr {psnr(restored.detach(), clean):.2f}, active {(code != 0).float().mean().item():.2f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    train(60)
