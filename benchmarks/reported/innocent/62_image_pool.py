# kind: history of generated images for the discriminator fills up to 50, later ones replace a random one; from junyanz/pytorch-CycleGAN-and-pix2pix (ImagePool)
import itertools
import random
import torch
import torch.nn as nn


class ImagePool:
    def __init__(self, pool_size):
        self.pool_size = pool_size
        self.num_imgs = 0
        self.images = []

    def query(self, images):
        chosen = []
        for image in images.detach():
            image = image[None].clone()
            if self.num_imgs < self.pool_size:
                self.num_imgs += 1
                self.images.append(image)
                chosen.append(image)
            elif random.random() > 0.5:
                i = random.randrange(self.pool_size)
                chosen.append(self.images[i])
                self.images[i] = image
            else:
                chosen.append(image)
        return torch.cat(chosen)


def generator():
    return nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), nn.InstanceNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 5, padding=2), nn.Tanh())


def critic():
    return nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4, 1, 1))


class CycleGAN:
    def __init__(self):
        self.g_ab, self.g_ba, self.d_a, self.d_b = (m.cuda() for m in (generator(), generator(), critic(), critic()))
        self.pool_a, self.pool_b = ImagePool(50), ImagePool(50)
        self.opt_g = torch.optim.Adam(itertools.chain(self.g_ab.parameters(), self.g_ba.parameters()), 2e-4, (0.5, 0.999))
        self.opt_d = torch.optim.Adam(itertools.chain(self.d_a.parameters(), self.d_b.parameters()), 2e-4, (0.5, 0.999))

    @staticmethod
    def gan(pred, real):
        return ((pred - float(real)) ** 2).mean()

    def step(self, a, b):
        for d in (self.d_a, self.d_b):
            d.requires_grad_(False)
        fake_b, fake_a = self.g_ab(a), self.g_ba(b)
        cycle = (self.g_ba(fake_b) - a).abs().mean() + (self.g_ab(fake_a) - b).abs().mean()
        loss_g = self.gan(self.d_b(fake_b), True) + self.gan(self.d_a(fake_a), True) + 10 * cycle
        self.opt_g.zero_grad()
        loss_g.backward()
        self.opt_g.step()
        for d in (self.d_a, self.d_b):
            d.requires_grad_(True)
        old_a, old_b = self.pool_a.query(fake_a), self.pool_b.query(fake_b)
        loss_d = sum(self.gan(d(real), True) + self.gan(d(old), False)
                     for d, real, old in ((self.d_a, a, old_a), (self.d_b, b, old_b)))
        self.opt_d.zero_grad()
        loss_d.backward()
        self.opt_d.step()
        return loss_g.item(), loss_d.item()


random.seed(0)
torch.manual_seed(0)
model = CycleGAN()
for it in range(110):
    a = torch.rand(1, 3, 48, 48) * 2 - 1
    b = torch.sign(torch.randn(1, 3, 48, 1)).expand(1, 3, 48, 48) * 0.8
    g, d = model.step(a.cuda(), b.cuda())
    if it % 25 == 0:
        print(f"iter {it} G {g:.3f} D {d:.3f} pool {model.pool_a.num_imgs}")
