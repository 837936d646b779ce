# kind: WGAN-GP with create_graph in autograd.grad and retain_graph between the critic's two losses, all graphs go with their step; from threads on gradient penalty memory
import torch
import torch.nn as nn
from torch import autograd

device = "cuda"


class Critic(nn.Module):
    def __init__(self, d=64, h=256):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(d, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh())
        self.score, self.aux = nn.Linear(h, 1), nn.Linear(h, 4)

    def forward(self, x):
        f = self.main(x)
        return self.score(f), self.aux(f)


def penalty(critic, real, fake, weight=10.0):
    a = torch.rand(real.size(0), 1, device=device)
    mid = (a * real + (1 - a) * fake).requires_grad_(True)
    out, _ = critic(mid)
    g, = autograd.grad(out, mid, torch.ones_like(out), create_graph=True, retain_graph=True)
    return weight * ((g.norm(2, dim=1) - 1) ** 2).mean()


netG = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 64)).to(device)
netC = Critic().to(device)
optG = torch.optim.Adam(netG.parameters(), lr=1e-4, betas=(0.0, 0.9))
optC = torch.optim.Adam(netC.parameters(), lr=1e-4, betas=(0.0, 0.9))
W_dist, pens = [], []

for it in range(80):
    for _ in range(2):
        real = torch.randn(256, 64, device=device) * 0.5 + 1
        kind = torch.randint(0, 4, (256,), device=device)
        with torch.no_grad():
            fake = netG(torch.randn(256, 32, device=device))
        s_real, aux = netC(real)
        s_fake, _ = netC(fake)
        gp = penalty(netC, real, fake)
        w = s_real.mean() - s_fake.mean()
        optC.zero_grad()
        (gp - w).backward(retain_graph=True)
        nn.functional.cross_entropy(aux, kind).backward()
        optC.step()
        W_dist.append(w.item())
        pens.append(gp.item())
    optG.zero_grad()
    loss_g = -netC(netG(torch.randn(256, 32, device=device)))[0].mean()
    loss_g.backward()
    optG.step()
    if it % 20 == 0:
        print(f"{it}: W {W_dist[-1]:.4f} penalty {pens[-1]:.4f} G {loss_g.item():.4f}")
