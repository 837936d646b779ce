# CARD: 8GiB
# KNOBS: BATCH=96 FREEZE_VGG NO_GRAD AUTOCAST CHECKPOINT=ResidualBlock,UpsampleBlock OPT FUSED
# EXPERT: the VGG loss network sees both images at full size and is only in eval(), so its graph is kept for the target too, next to the generator's upsampling blocks at full size; smaller batch or crops, AMP; no_grad for the target or a frozen VGG is not enough alone, nor is the optimizer
# Source: SRGAN training that dies inside the VGG perception loss (leftthomas/SRGAN 75)
import os
from math import log10

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.vgg import vgg16

import knobs

CROP_SIZE, UPSCALE_FACTOR = 128, 4
BATCH = int(os.environ.get("BATCH", 96))
STEPS = 3


class ResidualBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.prelu = nn.PReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        return x + self.bn2(self.conv2(self.prelu(self.bn1(self.conv1(x)))))


class UpsampleBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels * 4, 3, padding=1)
        self.shuffle = nn.PixelShuffle(2)
        self.prelu = nn.PReLU()

    def forward(self, x):
        return self.prelu(self.shuffle(self.conv(x)))


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.block1 = nn.Sequential(nn.Conv2d(3, 64, 9, padding=4), nn.PReLU())
        self.trunk = nn.Sequential(*[ResidualBlock(64) for _ in range(16)])
        self.up = nn.Sequential(UpsampleBlock(64), UpsampleBlock(64))
        self.out = nn.Conv2d(64, 3, 9, padding=4)

    def forward(self, x):
        x = self.block1(x)
        return (torch.tanh(self.out(self.up(x + self.trunk(x)))) + 1) / 2


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        layers, c = [nn.Conv2d(3, 64, 3, padding=1), nn.LeakyReLU(0.2)], 64
        for c2, s in ((64, 2), (128, 1), (128, 2), (256, 1), (256, 2), (512, 1), (512, 2)):
            layers += [nn.Conv2d(c, c2, 3, s, 1), nn.BatchNorm2d(c2), nn.LeakyReLU(0.2)]
            c = c2
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Conv2d(512, 1024, 1), nn.LeakyReLU(0.2),
                                 nn.Conv2d(1024, 1, 1))

    def forward(self, x):
        return torch.sigmoid(self.net(x).view(x.size(0)))


class GeneratorLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.loss_network = nn.Sequential(*list(vgg16().features)[:31]).eval()
        if os.environ.get("FREEZE_VGG", "0") == "1":
            for p in self.loss_network.parameters():
                p.requires_grad = False
        self.target_features = knobs.no_grad(lambda x: self.loss_network(x))
        self.mse_loss = nn.MSELoss()

    def forward(self, out_labels, out_images, target_images):
        adversarial_loss = torch.mean(1 - out_labels)
        perception_loss = self.mse_loss(self.loss_network(out_images), self.target_features(target_images))
        image_loss = self.mse_loss(out_images, target_images)
        dy = (out_images[:, :, 1:] - out_images[:, :, :-1]).pow(2).mean()
        dx = (out_images[..., 1:] - out_images[..., :-1]).pow(2).mean()
        return image_loss + 0.001 * adversarial_loss + 0.006 * perception_loss + 2e-8 * (dx + dy)


netG = knobs.apply(Generator().cuda())
netD = Discriminator().cuda()
generator_criterion = GeneratorLoss().cuda()
optimizerG = torch.optim.Adam(netG.parameters())
optimizerD = torch.optim.Adam(netD.parameters())
print("# generator parameters:", sum(p.numel() for p in netG.parameters()))
print("# discriminator parameters:", sum(p.numel() for p in netD.parameters()))

hr_all = torch.rand(BATCH * STEPS, 3, CROP_SIZE, CROP_SIZE)
for target in hr_all.split(BATCH):
    data = F.interpolate(target, scale_factor=1 / UPSCALE_FACTOR, mode="bicubic", antialias=True)
    real_img, z = target.cuda(), data.cuda()

    # (1) D: maximize D(x) - 1 - D(G(z))
    with knobs.autocast():
        fake_img = netG(z)
        real_out = netD(real_img).mean()
        fake_out = netD(fake_img.detach()).mean()
        d_loss = 1 - real_out + fake_out
    netD.zero_grad()
    d_loss.backward()
    optimizerD.step()

    # (2) G: 1 - D(G(z)) + perception + image + tv
    with knobs.autocast():
        g_loss = generator_criterion(netD(fake_img), fake_img, real_img)
    netG.zero_grad()
    g_loss.backward()
    optimizerG.step()
    print(f"Loss_D: {d_loss.item():.4f} Loss_G: {g_loss.item():.4f}")

netG.eval()
with torch.no_grad():
    lr = F.interpolate(hr_all[:8], scale_factor=1 / UPSCALE_FACTOR).cuda()
    mse = ((netG(lr) - hr_all[:8].cuda()) ** 2).mean().item()
print("psnr", 10 * log10(1 / max(mse, 1e-10)))
print("PEAK", torch.cuda.max_memory_allocated())
