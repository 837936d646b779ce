# kind: a progressively growing GAN reaches its last stage; after nashory/pggan-pytorch issue 16
import torch
import torch.nn as nn
import torch.nn.functional as F


class Generator(nn.Module):
    def __init__(self, nz=64, ch=32):
        super().__init__()
        self.first = nn.ConvTranspose2d(nz, ch, 4)
        self.blocks = nn.ModuleList()
        self.to_rgb = nn.Conv2d(ch, 3, 1)
        self.ch = ch

    def grow_network(self):
        block = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(self.ch, self.ch, 3, 1, 1), nn.LeakyReLU(0.2))
        self.blocks.append(block.cuda())

    def forward(self, z):
        x = F.leaky_relu(self.first(z[:, :, None, None]), 0.2)
        for b in self.blocks:
            x = b(x)
        return self.to_rgb(x)


class Discriminator(nn.Module):
    def __init__(self, ch=32):
        super().__init__()
        self.from_rgb = nn.Conv2d(3, ch, 1)
        self.blocks = nn.ModuleList()
        self.last = nn.Conv2d(ch, 1, 4)
        self.ch = ch

    def grow_network(self):
        block = nn.Sequential(nn.Conv2d(self.ch, self.ch, 3, 1, 1), nn.LeakyReLU(0.2), nn.AvgPool2d(2))
        self.blocks.insert(0, block.cuda())

    def forward(self, x):
        x = self.from_rgb(x)
        for b in self.blocks:
            x = b(x)
        return self.last(x).flatten()


class Trainer:
    def __init__(self, nz=64, batchsize=8):
        self.nz, self.batchsize, self.resl = nz, batchsize, 2
        self.G, self.D = Generator(nz).cuda(), Discriminator().cuda()
        self.z_test = torch.randn(batchsize, nz).cuda()
        self.renew_everything()

    def renew_everything(self):
        self.opt_g = torch.optim.Adam(self.G.parameters(), lr=1e-3, betas=(0.0, 0.99))
        self.opt_d = torch.optim.Adam(self.D.parameters(), lr=1e-3, betas=(0.0, 0.99))

    def grow(self):
        self.resl += 1
        self.G.grow_network()
        self.D.grow_network()
        self.renew_everything()

    def step(self):
        size = 2 ** self.resl
        real = torch.rand(self.batchsize, 3, size, size).cuda()
        fake = self.G(torch.randn(self.batchsize, self.nz).cuda())
        self.opt_d.zero_grad()
        loss_d = ((self.D(real) - 1) ** 2).mean() + (self.D(fake.detach()) ** 2).mean()
        loss_d.backward()
        self.opt_d.step()
        self.opt_g.zero_grad()
        loss_g = ((self.D(fake) - 1) ** 2).mean()
        loss_g.backward()
        self.opt_g.step()
        return loss_d.item(), loss_g.item()

    def train(self, stage_iters, max_resl, last_iters):
        while True:
            iters = stage_iters if self.resl < max_resl else last_iters
            for _ in range(iters):
                losses = self.step()
            with torch.no_grad():
                self.x_test = self.G(self.z_test)
            print("resl", 2 ** self.resl, losses, tuple(self.x_test.shape))
            if self.resl == max_resl:
                break
            self.grow()


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer().train(stage_iters=12, max_resl=6, last_iters=50)
