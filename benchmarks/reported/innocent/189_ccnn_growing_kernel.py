# kind: convolution kernels grow during training up to a limit; after david-knigge/ccnn issue 11
import torch
import torch.nn as nn
import torch.nn.functional as F


class SIREN(nn.Module):
    def __init__(self, out_channels, hidden=32, omega_0=30.0):
        super().__init__()
        self.l1, self.l2 = nn.Linear(2, hidden), nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, out_channels)
        self.omega_0 = omega_0

    def forward(self, pos):
        x = torch.sin(self.omega_0 * self.l1(pos))
        return self.out(torch.sin(self.omega_0 * self.l2(x)))


class FlexConv(nn.Module):
    def __init__(self, in_c, out_c, max_size=33):
        super().__init__()
        self.in_c, self.out_c = in_c, out_c
        self.max_size = max_size
        self.current_size = 5
        self.kernel_net = SIREN(in_c * out_c)
        self.bias = nn.Parameter(torch.zeros(out_c))

    def grow(self):
        """crop size of the gaussian mask, recomputed as sigma increases"""
        self.current_size = min(self.max_size, self.current_size + 2)

    def forward(self, x):
        k = self.current_size
        lin = torch.linspace(-1, 1, k, device=x.device)
        pos = torch.stack(torch.meshgrid(lin, lin, indexing="ij"), dim=-1).view(-1, 2)
        mask = torch.exp(-0.5 * (pos ** 2).sum(-1, keepdim=True) / (k / self.max_size + 0.1) ** 2)
        kernel = (self.kernel_net(pos) * mask).t().reshape(self.out_c, self.in_c, k, k)
        return F.conv2d(x, kernel, self.bias, padding=k // 2)


class CCNN(nn.Module):
    def __init__(self, channels=16, n_classes=10):
        super().__init__()
        self.c1 = FlexConv(3, channels)
        self.c2 = FlexConv(channels, channels)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, n_classes)

    def forward(self, x):
        x = F.gelu(self.bn1(self.c1(x)))
        x = x + F.gelu(self.bn2(self.c2(x)))
        return self.head(x.mean(dim=(2, 3)))


def main():
    torch.manual_seed(0)
    model = CCNN().cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for it in range(90):
        x = torch.randn(8, 3, 32, 32).cuda()
        y = torch.randint(0, 10, (8,)).cuda()
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 3 == 0:
            for m in model.modules():
                if isinstance(m, FlexConv):
                    m.grow()
        if it % 30 == 0:
            print(it, loss.item(), model.c1.current_size)


if __name__ == "__main__":
    main()
