# kind: innocent, history of 50 generated images per domain fills and is then replaced at random; from junyanz/pytorch-CycleGAN-and-pix2pix issue 75
import itertools
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class ImagePool:
    def __init__(self, pool_size=50):
        self.pool_size = pool_size
        self.images = []

    def query(self, images):
        picked = []
        for image in images.detach().split(1):
            if len(self.images) < self.pool_size:
                self.images.append(image.clone())
                picked.append(image)
            elif random.random() > 0.5:
                i = random.randrange(self.pool_size)
                old, self.images[i] = self.images[i], image.clone()
                picked.append(old)
            else:
                picked.append(image)
        return torch.cat(picked)


def generator(ch=8):
    return nn.Sequential(nn.Conv2d(3, ch, 3, padding=1), nn.InstanceNorm2d(ch), nn.ReLU(),
                         nn.Conv2d(ch, ch, 3, padding=1), nn.ReLU(), nn.Conv2d(ch, 3, 3, padding=1), nn.Tanh())


def discriminator(ch=8):
    return nn.Sequential(nn.Conv2d(3, ch, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(ch, 1, 4, 2, 1))


def gan_loss(pred, real):
    return F.mse_loss(pred, torch.full_like(pred, float(real)))


class CycleGANModel:
    def __init__(self):
        self.netG_A, self.netG_B = generator().cuda(), generator().cuda()
        self.netD_A, self.netD_B = discriminator().cuda(), discriminator().cuda()
        self.fake_A_pool, self.fake_B_pool = ImagePool(), ImagePool()
        self.optimizer_G = torch.optim.Adam(
            itertools.chain(self.netG_A.parameters(), self.netG_B.parameters()), lr=2e-4, betas=(0.5, 0.999))
        self.optimizer_D = torch.optim.Adam(
            itertools.chain(self.netD_A.parameters(), self.netD_B.parameters()), lr=2e-4, betas=(0.5, 0.999))

    def backward_G(self, real_A, real_B):
        self.fake_B, self.fake_A = self.netG_A(real_A), self.netG_B(real_B)
        rec_A, rec_B = self.netG_B(self.fake_B), self.netG_A(self.fake_A)
        loss = gan_loss(self.netD_A(self.fake_B), True) + gan_loss(self.netD_B(self.fake_A), True)
        loss = loss + 10 * (F.l1_loss(rec_A, real_A) + F.l1_loss(rec_B, real_B))
        loss.backward()
        return loss.item()

    def backward_D(self, netD, real, fake):
        loss = 0.5 * (gan_loss(netD(real), True) + gan_loss(netD(fake), False))
        loss.backward()
        return loss.item()

    def optimize_parameters(self, real_A, real_B):
        for net in (self.netD_A, self.netD_B):
            net.requires_grad_(False)
        self.optimizer_G.zero_grad()
        loss_g = self.backward_G(real_A, real_B)
        self.optimizer_G.step()
        for net in (self.netD_A, self.netD_B):
            net.requires_grad_(True)
        self.optimizer_D.zero_grad()
        loss_d = self.backward_D(self.netD_A, real_B, self.fake_B_pool.query(self.fake_B))
        loss_d += self.backward_D(self.netD_B, real_A, self.fake_A_pool.query(self.fake_A))
        self.optimizer_D.step()
        return loss_g, loss_d


def main(n_iters=130):
    random.seed(0)
    torch.manual_seed(0)
    model = CycleGANModel()
    for i in range(1, n_iters + 1):
        real_A = torch.rand(1, 3, 48, 48, device="cuda") * 2 - 1
        real_B = torch.rand(1, 3, 1, 1, device="cuda").expand(1, 3, 48, 48) * 2 - 1
        losses = model.optimize_parameters(real_A, real_B)
        if i % 40 == 0:
            print(f"iter {i} G {losses[0]:.3f} D {losses[1]:.3f} pool {len(model.fake_A_pool.images)}")


if __name__ == "__main__":
    main()
