# CARD: 7GiB
# KNOBS: BATCH=64 AUTOCAST CHECKPOINT=UpBlock,DownBlock OPT FUSED DETACH
# EXPERT: fake is not detached and retain_graph=True keeps the generator's and both critic graphs alive; detach fake and one backward each in the D step, smaller batch
import os

import torch
import torch.nn as nn
import torch.optim as optim

import knobs

torch.manual_seed(999)
batch_size = int(os.environ.get("BATCH", 64))
image_size = 256
nc = 3
nz = 100
ngf = 48
ndf = 48
lr = 0.0002
beta1 = 0.5
device = torch.device("cuda:0")
# the D step as in the DCGAN tutorial: fake is detached, one backward for real and one for fake
DETACH = os.environ.get("DETACH") == "1"


class UpBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.block = nn.Sequential(
            nn.ConvTranspose2d(cin, cout, 4, 2, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(True))

    def forward(self, x):
        return self.block(x)


class DownBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(cin, cout, 4, 2, 1, bias=False), nn.BatchNorm2d(cout), nn.LeakyReLU(0.2, inplace=True))

    def forward(self, x):
        return self.block(x)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 32, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 32),
            nn.ReLU(True),
            UpBlock(ngf * 32, ngf * 16),
            UpBlock(ngf * 16, ngf * 8),
            UpBlock(ngf * 8, ngf * 4),
            UpBlock(ngf * 4, ngf * 2),
            UpBlock(ngf * 2, ngf),
            nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(nc, ndf, 3, 1, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            DownBlock(ndf, ndf * 2),
            DownBlock(ndf * 2, ndf * 4),
            DownBlock(ndf * 4, ndf * 8),
            DownBlock(ndf * 8, ndf * 16),
            DownBlock(ndf * 16, ndf * 32),
            nn.Conv2d(ndf * 32, 1, 8, 1, 0, bias=False),
        )

    def forward(self, input):
        return self.main(input).view(-1)


netG = Generator().to(device)
netD = Discriminator().to(device)
knobs.apply(netG)
knobs.apply(netD)
criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(16, nz, 1, 1, device=device)
optimizerD = optim.Adam(netD.parameters(), lr=lr, betas=(beta1, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=lr, betas=(beta1, 0.999))

print("Starting Training Loop...")
for i in range(3):
    # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
    netD.zero_grad()
    real = torch.rand(batch_size, nc, image_size, image_size).mul_(2).sub_(1).to(device)
    label = torch.full((batch_size,), 1.0, device=device)
    noise = torch.randn(batch_size, nz, 1, 1, device=device)
    with knobs.autocast():
        errD_real = criterion(netD(real), label)
    if DETACH:
        errD_real.backward()
    with knobs.autocast():
        fake = netG(noise)
        errD_fake = criterion(netD(fake.detach() if DETACH else fake), label - 1)
        errD = errD_real + errD_fake
    if DETACH:
        errD_fake.backward()
    else:
        errD.backward(retain_graph=True)
    optimizerD.step()

    # (2) Update G network: maximize log(D(G(z)))
    netG.zero_grad()
    with knobs.autocast():
        output = netD(fake)
        errG = criterion(output, label)
    errG.backward()
    optimizerG.step()
    print("[%d/3]\tLoss_D: %.4f\tLoss_G: %.4f\tD(G(z)): %.4f"
          % (i, errD.item(), errG.item(), output.float().sigmoid().mean().item()))

with torch.no_grad():
    img = netG(fixed_noise).detach().cpu()
print("PEAK", torch.cuda.max_memory_allocated())
