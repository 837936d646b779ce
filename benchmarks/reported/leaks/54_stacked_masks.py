# kind: each pruning round registers another parametrization on the same weights, masks and their products pile up; from Lightning-AI/pytorch-lightning issue 8542 (iterative pruning)
import torch
import torch.nn as nn
import torch.nn.utils.parametrize as P


class Mask(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, w):
        return w * self.mask


def prune_step(model, amount):
    """zero the smallest remaining `amount` of all linear weights"""
    for m in model.modules():
        if type(m).__name__.endswith("Linear"):
            w = m.weight.detach()
            alive = w[w != 0].abs()
            k = int(alive.numel() * amount)
            cut = alive.kthvalue(max(k, 1)).values
            P.register_parametrization(m, "weight", Mask((w.abs() > cut).to(w.dtype)))  # LEAK


def sparsity(model):
    zero = total = 0
    for m in model.modules():
        if type(m).__name__.endswith("Linear"):
            zero += (m.weight == 0).sum().item()
            total += m.weight.numel()
    return zero / total


class Net(nn.Module):
    def __init__(self, d=240):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(64, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 10))

    def forward(self, x):
        return self.seq(x)


def main():
    torch.manual_seed(0)
    net = Net().cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    teacher = torch.randn(64, 10).cuda()
    for it in range(70):
        x = torch.randn(128, 64, device="cuda")
        loss = nn.functional.cross_entropy(net(x), (x @ teacher).argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        prune_step(net, 0.01)
        if it % 10 == 0:
            print(f"{it:3d} loss {loss.item():.3f} sparsity {sparsity(net):.2f}")


main()
