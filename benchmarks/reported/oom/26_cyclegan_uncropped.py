# CARD: 16GiB
# KNOBS: BATCH=2 SIZE=600 LAMBDA_IDT=0.5 POOL=50 AUTOCAST CHECKPOINT=ResnetBlock CHECKPOINT_PATHS=model.* OPT FUSED
# EXPERT: six generator passes (fake, reconstruction, identity, both ways) of uncropped images live until backward_G; batch 1, crop to 256-360, checkpoint the generators; a smaller image pool or dropping the identity loss is not enough
# Source: CycleGAN on photos of 600x600 to 800x600 without cropping, also with batch size > 1 (junyanz/pytorch-CycleGAN-and-pix2pix 328, 1322, 171; PyTorch-GAN 104)
import functools
import itertools
import os
import random

import torch
import torch.nn as nn

import knobs


def envf(name, default):
    return type(default)(os.environ.get(name, default))


class Opt:
    batch_size = envf("BATCH", 2)
    fine_size = envf("SIZE", 600)
    lambda_A = 10.0
    lambda_B = 10.0
    lambda_idt = envf("LAMBDA_IDT", 0.5)
    pool_size = envf("POOL", 50)
    lr = 2e-4
    niter = 3


norm_layer = functools.partial(nn.InstanceNorm2d, affine=False, track_running_stats=False)


class ResnetBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv_block = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(dim, dim, 3), norm_layer(dim), nn.ReLU(True),
            nn.ReflectionPad2d(1), nn.Conv2d(dim, dim, 3), norm_layer(dim))

    def forward(self, x):
        return x + self.conv_block(x)


class ResnetGenerator(nn.Module):
    def __init__(self, ngf=64, n_blocks=9):
        super().__init__()
        seq = [nn.ReflectionPad2d(3), nn.Conv2d(3, ngf, 7), norm_layer(ngf), nn.ReLU(True)]
        for m in (1, 2):
            seq += [nn.Conv2d(ngf * m, ngf * m * 2, 3, 2, 1), norm_layer(ngf * m * 2), nn.ReLU(True)]
        seq += [ResnetBlock(ngf * 4) for _ in range(n_blocks)]
        for m in (4, 2):
            seq += [nn.ConvTranspose2d(ngf * m, ngf * m // 2, 3, 2, 1, output_padding=1),
                    norm_layer(ngf * m // 2), nn.ReLU(True)]
        seq += [nn.ReflectionPad2d(3), nn.Conv2d(ngf, 3, 7), nn.Tanh()]
        self.model = nn.Sequential(*seq)

    def forward(self, x):
        return self.model(x)


def define_D(ndf=64):
    seq = [nn.Conv2d(3, ndf, 4, 2, 1), nn.LeakyReLU(0.2, True)]
    for a, b, s in ((1, 2, 2), (2, 4, 2), (4, 8, 1)):
        seq += [nn.Conv2d(ndf * a, ndf * b, 4, s, 1), norm_layer(ndf * b), nn.LeakyReLU(0.2, True)]
    return nn.Sequential(*seq, nn.Conv2d(ndf * 8, 1, 4, 1, 1))


class ImagePool:
    def __init__(self, size):
        self.size, self.images = size, []

    def query(self, images):
        if self.size == 0:
            return images
        out = []
        for im in images.detach():
            im = im.unsqueeze(0)
            if len(self.images) < self.size:
                self.images.append(im)
                out.append(im)
            elif random.random() > 0.5:
                k = random.randrange(self.size)
                out.append(self.images[k].clone())
                self.images[k] = im
            else:
                out.append(im)
        return torch.cat(out)


class CycleGANModel:
    def __init__(self, opt):
        self.opt = opt
        self.netG_A, self.netG_B = (knobs.apply(ResnetGenerator().cuda()) for _ in range(2))
        self.netD_A, self.netD_B = define_D().cuda(), define_D().cuda()
        self.pool_A, self.pool_B = ImagePool(opt.pool_size), ImagePool(opt.pool_size)
        self.gan, self.l1 = nn.MSELoss(), nn.L1Loss()
        self.optimizer_G = torch.optim.Adam(
            itertools.chain(self.netG_A.parameters(), self.netG_B.parameters()), lr=opt.lr, betas=(0.5, 0.999))
        self.optimizer_D = torch.optim.Adam(
            itertools.chain(self.netD_A.parameters(), self.netD_B.parameters()), lr=opt.lr, betas=(0.5, 0.999))

    def set_requires_grad(self, nets, flag):
        for net in nets:
            for p in net.parameters():
                p.requires_grad = flag

    def forward(self):
        self.fake_B = self.netG_A(self.real_A)
        self.rec_A = self.netG_B(self.fake_B)
        self.fake_A = self.netG_B(self.real_B)
        self.rec_B = self.netG_A(self.fake_A)

    def criterionGAN(self, pred, real):
        return self.gan(pred, torch.full_like(pred, 1.0 if real else 0.0))

    def loss_G(self):
        o = self.opt
        loss = 0
        if o.lambda_idt > 0:
            loss = loss + self.l1(self.netG_A(self.real_B), self.real_B) * o.lambda_B * o.lambda_idt
            loss = loss + self.l1(self.netG_B(self.real_A), self.real_A) * o.lambda_A * o.lambda_idt
        loss = loss + self.criterionGAN(self.netD_A(self.fake_B), True)
        loss = loss + self.criterionGAN(self.netD_B(self.fake_A), True)
        loss = loss + self.l1(self.rec_A, self.real_A) * o.lambda_A
        loss = loss + self.l1(self.rec_B, self.real_B) * o.lambda_B
        return loss

    def backward_D(self, netD, real, fake):
        with knobs.autocast():
            loss = 0.5 * (self.criterionGAN(netD(real), True) + self.criterionGAN(netD(fake.detach()), False))
        loss.backward()
        return loss

    def optimize_parameters(self, real_A, real_B):
        self.real_A, self.real_B = real_A.cuda(), real_B.cuda()
        self.set_requires_grad([self.netD_A, self.netD_B], False)
        self.optimizer_G.zero_grad()
        with knobs.autocast():
            self.forward()
            g = self.loss_G()
        g.backward()
        self.optimizer_G.step()
        self.set_requires_grad([self.netD_A, self.netD_B], True)
        self.optimizer_D.zero_grad()
        d_A = self.backward_D(self.netD_A, self.real_B, self.pool_B.query(self.fake_B))
        d_B = self.backward_D(self.netD_B, self.real_A, self.pool_A.query(self.fake_A))
        self.optimizer_D.step()
        return g.item(), d_A.item(), d_B.item()


if __name__ == "__main__":
    opt = Opt()
    model = CycleGANModel(opt)
    for i in range(opt.niter):
        A = torch.rand(opt.batch_size, 3, opt.fine_size, opt.fine_size) * 2 - 1
        B = torch.rand(opt.batch_size, 3, opt.fine_size, opt.fine_size) * 2 - 1
        print("(epoch: 1, iters: %d) G %.3f D_A %.3f D_B %.3f" % (i, *model.optimize_parameters(A, B)))
    print("PEAK", torch.cuda.max_memory_allocated())
