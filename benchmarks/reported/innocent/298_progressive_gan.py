# kind: https://github.com/akanimax/pro_gan_pytorch/pull/12: progressive growing: a new block for both nets every 6 steps, until the size is reached
import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"
CH = 96
LAST = 10


class Generator(nn.Module):
    def __init__(self, z=64):
        super().__init__()
        self.start = nn.Linear(z, CH * 16)
        self.blocks = nn.ModuleList()
        self.rgb = nn.Conv2d(CH, 3, 1)

    def grow(self):
        block = nn.Sequential(nn.Conv2d(CH, CH, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(CH, CH, 3, padding=1), nn.LeakyReLU(0.2)).to(device)
        self.blocks.append(block)
        return block

    def forward(self, z):
        x = self.start(z).view(-1, CH, 4, 4)
        for i, block in enumerate(self.blocks):
            if i % 3 == 0:
                x = F.interpolate(x, scale_factor=2)
            x = block(x)
        return self.rgb(x)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.rgb = nn.Conv2d(3, CH, 1)
        self.blocks = nn.ModuleList()
        self.end = nn.Linear(CH, 1)

    def grow(self):
        block = nn.Sequential(nn.Conv2d(CH, CH, 3, padding=1), nn.LeakyReLU(0.2)).to(device)
        self.blocks.insert(0, block)
        return block

    def forward(self, x):
        x = self.rgb(x)
        for block in self.blocks:
            x = x + block(x)
        return self.end(x.mean((2, 3)))


def main():
    g, d = Generator().to(device), Critic().to(device)
    opt_g = torch.optim.Adam(g.parameters(), lr=1e-3, betas=(0.0, 0.99))
    opt_d = torch.optim.Adam(d.parameters(), lr=1e-3, betas=(0.0, 0.99))
    for step in range(120):
        if step % 6 == 0 and len(g.blocks) < LAST:
            opt_g.add_param_group({"params": g.grow().parameters()})
            opt_d.add_param_group({"params": d.grow().parameters()})
        z = torch.randn(8, 64, device=device)
        fake = g(z)
        real = torch.rand_like(fake)
        loss_d = F.relu(1 - d(real)).mean() + F.relu(1 + d(fake.detach())).mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        loss_g = -d(fake).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        if step % 10 == 0:
            print(f"{step}: d {loss_d.item():.3f} g {loss_g.item():.3f} blocks {len(g.blocks)} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
