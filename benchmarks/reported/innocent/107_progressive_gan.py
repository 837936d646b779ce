# kind: innocent, progressive growing adds blocks with optimizer state during the first half, then stays at the final resolution; from facebookresearch/pytorch_GAN_zoo PGAN
import torch
import torch.nn as nn
import torch.nn.functional as F


class PGenerator(nn.Module):
    def __init__(self, latent=32, ch=24):
        super().__init__()
        self.ch, self.latent = ch, latent
        self.format = nn.Linear(latent, ch * 16)
        self.blocks = nn.ModuleList()
        self.to_rgb = nn.Conv2d(ch, 3, 1)

    def add_scale(self):
        new = nn.Conv2d(self.ch, self.ch, 3, padding=1).cuda()
        self.blocks.append(new)
        return list(new.parameters())

    def forward(self, z):
        x = self.format(z).view(-1, self.ch, 4, 4)
        for block in self.blocks:
            x = F.leaky_relu(block(F.interpolate(x, scale_factor=2)), 0.2)
        return torch.tanh(self.to_rgb(x))


class PDiscriminator(nn.Module):
    def __init__(self, ch=24):
        super().__init__()
        self.ch = ch
        self.from_rgb = nn.Conv2d(3, ch, 1)
        self.blocks = nn.ModuleList()
        self.out = nn.Linear(ch * 16, 1)

    def add_scale(self):
        new = nn.Conv2d(self.ch, self.ch, 3, padding=1).cuda()
        self.blocks.insert(0, new)
        return list(new.parameters())

    def forward(self, x):
        x = F.leaky_relu(self.from_rgb(x), 0.2)
        for block in self.blocks:
            x = F.avg_pool2d(F.leaky_relu(block(x), 0.2), 2)
        return self.out(x.flatten(1))


class ProgressiveGANTrainer:
    scales = {0: 4, 20: 8, 45: 16, 75: 32}

    def __init__(self, dataset_size=64):
        self.G, self.D = PGenerator().cuda(), PDiscriminator().cuda()
        self.opt_g = torch.optim.Adam(self.G.parameters(), lr=1e-3, betas=(0.0, 0.99))
        self.opt_d = torch.optim.Adam(self.D.parameters(), lr=1e-3, betas=(0.0, 0.99))
        gen = torch.Generator().manual_seed(0)
        self.raw = torch.rand(dataset_size, 3, 32, 32, generator=gen) * 2 - 1
        self.size = 4
        self.data = self._resized()

    def _resized(self):
        return F.adaptive_avg_pool2d(self.raw, self.size).cuda()

    def grow(self, size):
        self.opt_g.add_param_group({"params": self.G.add_scale()})
        self.opt_d.add_param_group({"params": self.D.add_scale()})
        self.size = size
        self.data = self._resized()
        print("now at", size)

    def step(self, batch=8):
        real = self.data[torch.randint(len(self.data), (batch,), device="cuda")]
        z = torch.randn(batch, self.G.latent, device="cuda")
        fake = self.G(z)
        loss_d = F.softplus(self.D(fake.detach())).mean() + F.softplus(-self.D(real)).mean()
        self.opt_d.zero_grad()
        loss_d.backward()
        self.opt_d.step()
        loss_g = F.softplus(-self.D(fake)).mean()
        self.opt_g.zero_grad()
        loss_g.backward()
        self.opt_g.step()
        return loss_g.item(), loss_d.item()

    def train(self, n_iter=200):
        for it in range(n_iter):
            if it in self.scales and self.scales[it] != self.size:
                self.grow(self.scales[it])
            losses = self.step()
        print("G %.3f D %.3f" % losses)


if __name__ == "__main__":
    torch.manual_seed(0)
    ProgressiveGANTrainer().train()
