# CARD: 4GiB
# KNOBS: BATCH=16 AUTOCAST CHECKPOINT=RRDB OPT
# EXPERT: 23 RRDBs with dense concatenations, plus VGG features of 16 patches of 128; smaller batch (or patches), AMP
# after XPixelGroup/BasicSR issue 102
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision

import knobs

opt = {
    "batch_size": int(os.environ.get("BATCH", 16)), "HR_size": 128, "scale": 4,
    "nf": 64, "nb": 23, "gc": 32,
    "pixel_weight": 1e-2, "feature_weight": 1.0, "gan_weight": 5e-3, "lr": 1e-4,
}


class ResidualDenseBlock_5C(nn.Module):
    def __init__(self, nf=64, gc=32):
        super().__init__()
        self.conv1 = nn.Conv2d(nf, gc, 3, 1, 1)
        self.conv2 = nn.Conv2d(nf + gc, gc, 3, 1, 1)
        self.conv3 = nn.Conv2d(nf + 2 * gc, gc, 3, 1, 1)
        self.conv4 = nn.Conv2d(nf + 3 * gc, gc, 3, 1, 1)
        self.conv5 = nn.Conv2d(nf + 4 * gc, nf, 3, 1, 1)
        self.lrelu = nn.LeakyReLU(0.2, inplace=True)

    def forward(self, x):
        x1 = self.lrelu(self.conv1(x))
        x2 = self.lrelu(self.conv2(torch.cat((x, x1), 1)))
        x3 = self.lrelu(self.conv3(torch.cat((x, x1, x2), 1)))
        x4 = self.lrelu(self.conv4(torch.cat((x, x1, x2, x3), 1)))
        x5 = self.conv5(torch.cat((x, x1, x2, x3, x4), 1))
        return x5 * 0.2 + x


class RRDB(nn.Module):
    def __init__(self, nf, gc=32):
        super().__init__()
        self.RDB1 = ResidualDenseBlock_5C(nf, gc)
        self.RDB2 = ResidualDenseBlock_5C(nf, gc)
        self.RDB3 = ResidualDenseBlock_5C(nf, gc)

    def forward(self, x):
        out = self.RDB3(self.RDB2(self.RDB1(x)))
        return out * 0.2 + x


class RRDBNet(nn.Module):
    def __init__(self, in_nc, out_nc, nf, nb, gc):
        super().__init__()
        self.conv_first = nn.Conv2d(in_nc, nf, 3, 1, 1)
        self.RRDB_trunk = nn.Sequential(*[RRDB(nf, gc) for _ in range(nb)])
        self.trunk_conv = nn.Conv2d(nf, nf, 3, 1, 1)
        self.upconv1 = nn.Conv2d(nf, nf, 3, 1, 1)
        self.upconv2 = nn.Conv2d(nf, nf, 3, 1, 1)
        self.HRconv = nn.Conv2d(nf, nf, 3, 1, 1)
        self.conv_last = nn.Conv2d(nf, out_nc, 3, 1, 1)
        self.lrelu = nn.LeakyReLU(0.2, inplace=True)

    def forward(self, x):
        fea = self.conv_first(x)
        fea = fea + self.trunk_conv(self.RRDB_trunk(fea))
        fea = self.lrelu(self.upconv1(F.interpolate(fea, scale_factor=2, mode="nearest")))
        fea = self.lrelu(self.upconv2(F.interpolate(fea, scale_factor=2, mode="nearest")))
        return self.conv_last(self.lrelu(self.HRconv(fea)))


class Discriminator_VGG_128(nn.Module):
    def __init__(self, in_nc, nf):
        super().__init__()
        layers, c = [nn.Conv2d(in_nc, nf, 3, 1, 1), nn.LeakyReLU(0.2, True)], nf
        layers += [nn.Conv2d(nf, nf, 4, 2, 1, bias=False), nn.BatchNorm2d(nf), nn.LeakyReLU(0.2, True)]
        for mult in (2, 4, 8, 8):
            o = nf * mult
            layers += [nn.Conv2d(c, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2, True),
                       nn.Conv2d(o, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2, True)]
            c = o
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Linear(512 * 4 * 4, 100), nn.LeakyReLU(0.2, True), nn.Linear(100, 1))

    def forward(self, x):
        x = self.features(x)
        return self.classifier(x.view(x.size(0), -1))


class VGGFeatureExtractor(nn.Module):
    def __init__(self, feature_layer=34):
        super().__init__()
        model = torchvision.models.vgg19()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
        self.features = nn.Sequential(*list(model.features.children())[:feature_layer + 1])
        for v in self.features.parameters():
            v.requires_grad = False

    def forward(self, x):
        return self.features((x - self.mean) / self.std)


class SRRaGANModel:
    def __init__(self):
        self.netG = knobs.apply(RRDBNet(3, 3, opt["nf"], opt["nb"], opt["gc"]).cuda())
        self.netD = Discriminator_VGG_128(3, 64).cuda()
        self.netF = VGGFeatureExtractor().cuda().eval()
        self.optimizer_G = torch.optim.Adam(self.netG.parameters(), lr=opt["lr"], betas=(0.9, 0.99))
        self.optimizer_D = torch.optim.Adam(self.netD.parameters(), lr=opt["lr"], betas=(0.9, 0.99))
        self.cri_gan = nn.BCEWithLogitsLoss()

    def optimize_parameters(self, var_L, var_H):
        real = torch.ones(var_H.size(0), 1, device="cuda")
        fake = torch.zeros_like(real)
        # G
        for p in self.netD.parameters():
            p.requires_grad = False
        self.optimizer_G.zero_grad()
        with knobs.autocast():
            self.fake_H = self.netG(var_L)
            l_g = opt["pixel_weight"] * F.l1_loss(self.fake_H, var_H)
            real_fea = self.netF(var_H).detach()
            fake_fea = self.netF(self.fake_H)
            l_g = l_g + opt["feature_weight"] * F.l1_loss(fake_fea, real_fea)
            pred_g_fake = self.netD(self.fake_H)
            pred_d_real = self.netD(var_H).detach()
            l_g = l_g + opt["gan_weight"] * (self.cri_gan(pred_d_real - pred_g_fake.mean(), fake)
                                             + self.cri_gan(pred_g_fake - pred_d_real.mean(), real)) / 2
        l_g.backward()
        self.optimizer_G.step()
        # D
        for p in self.netD.parameters():
            p.requires_grad = True
        self.optimizer_D.zero_grad()
        with knobs.autocast():
            pred_d_real = self.netD(var_H)
            pred_d_fake = self.netD(self.fake_H.detach())
            l_d = (self.cri_gan(pred_d_real - pred_d_fake.mean(), real)
                   + self.cri_gan(pred_d_fake - pred_d_real.mean(), fake)) / 2
        l_d.backward()
        self.optimizer_D.step()
        return l_g.item(), l_d.item()


model = SRRaGANModel()
for current_step in range(3):
    hr = torch.rand(opt["batch_size"], 3, opt["HR_size"], opt["HR_size"])
    lr = F.interpolate(hr, scale_factor=1 / opt["scale"], mode="bicubic")
    l_g, l_d = model.optimize_parameters(lr.cuda(), hr.cuda())
    print(f"<iter:{current_step:4d}> l_g: {l_g:.4e} l_d: {l_d:.4e}")
print("PEAK", torch.cuda.max_memory_allocated())
