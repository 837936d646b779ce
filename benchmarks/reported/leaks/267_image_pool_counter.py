# kind: history of generated images never counts what it holds (num_imgs is not incremented), so the pool of 20 takes every image; in the manner of junyanz/pytorch-CycleGAN-and-pix2pix image_pool
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class ImagePool:
    """Buffer of previously generated images, as in Shrivastava et al."""

    def __init__(self, pool_size):
        self.pool_size = pool_size
        self.num_imgs = 0
        self.images = []

    def query(self, images):
        if self.pool_size == 0:
            return images
        return_images = []
        for image in images:
            image = image.detach().unsqueeze(0).clone()
            if self.num_imgs < self.pool_size:
                self.images.append(image)  # LEAK
                return_images.append(image)
            elif random.random() > 0.5:
                k = random.randrange(self.pool_size)
                old, self.images[k] = self.images[k], image
                return_images.append(old)
            else:
                return_images.append(image)
        return torch.cat(return_images, 0)


def unet_like(ch=16):
    return nn.Sequential(
        nn.Conv2d(3, ch, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(ch, 2 * ch, 4, 2, 1), nn.BatchNorm2d(2 * ch), nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(2 * ch, ch, 4, 2, 1), nn.BatchNorm2d(ch), nn.ReLU(),
        nn.ConvTranspose2d(ch, 3, 4, 2, 1), nn.Tanh())


def patch_gan(ch=16):
    return nn.Sequential(
        nn.Conv2d(3, ch, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(ch, 2 * ch, 4, 2, 1), nn.BatchNorm2d(2 * ch), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * ch, 1, 4, 1, 1))


class Edges2Shoes:
    def __init__(self, device):
        self.device = device
        self.G = unet_like().to(device)
        self.D = patch_gan().to(device)
        self.pool = ImagePool(20)
        self.opt_G = torch.optim.Adam(self.G.parameters(), 2e-4, (0.5, 0.999))
        self.opt_D = torch.optim.Adam(self.D.parameters(), 2e-4, (0.5, 0.999))

    def gan_loss(self, pred, real):
        target = torch.ones_like(pred) if real else torch.zeros_like(pred)
        return F.mse_loss(pred, target)

    def optimize_parameters(self, A, B):
        fake = self.G(A)
        # discriminator
        self.opt_D.zero_grad()
        pred_fake = self.D(self.pool.query(fake))
        loss_D = 0.5 * (self.gan_loss(self.D(B), True) + self.gan_loss(pred_fake, False))
        loss_D.backward()
        self.opt_D.step()
        # generator
        self.opt_G.zero_grad()
        loss_G = self.gan_loss(self.D(fake), True) + 100 * F.l1_loss(fake, B)
        loss_G.backward()
        self.opt_G.step()
        return loss_D.item(), loss_G.item()


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    model = Edges2Shoes(torch.device("cuda"))
    for it in range(1, 101):
        A = torch.rand(4, 3, 64, 64, device="cuda")
        B = torch.rand(4, 3, 64, 64, device="cuda")
        d, g = model.optimize_parameters(A, B)
        if it % 25 == 0:
            print(f"(iters: {it}) D: {d:.3f} G: {g:.3f}")
