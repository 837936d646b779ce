# kind: a pool of 50 earlier pictures fills; after zackchase/mxnet-the-straight-dope PR 293
import random

import torch
import torch.nn as nn


class ImagePool:
    def __init__(self, pool_size):
        self.pool_size = pool_size
        self.num_imgs = 0
        self.images = []

    def query(self, images):
        if self.pool_size == 0:
            return images
        return_images = []
        for image in images:
            image = torch.unsqueeze(image.data, 0)
            if self.num_imgs < self.pool_size:
                self.num_imgs = self.num_imgs + 1
                self.images.append(image.clone())
                return_images.append(image)
            elif random.uniform(0, 1) > 0.5:
                random_id = random.randint(0, self.pool_size - 1)
                tmp = self.images[random_id].clone()
                self.images[random_id] = image.clone()
                return_images.append(tmp)
            else:
                return_images.append(image)
        return torch.cat(return_images, 0)


class UnetGenerator(nn.Module):
    def __init__(self, f=16):
        super().__init__()
        self.d1 = nn.Conv2d(3, f, 4, 2, 1)
        self.d2 = nn.Conv2d(f, 2 * f, 4, 2, 1)
        self.u2 = nn.ConvTranspose2d(2 * f, f, 4, 2, 1)
        self.u1 = nn.ConvTranspose2d(2 * f, 3, 4, 2, 1)

    def forward(self, x):
        a = torch.relu(self.d1(x))
        b = torch.relu(self.u2(torch.relu(self.d2(a))))
        return torch.tanh(self.u1(torch.cat([a, b], 1)))


def discriminator(f=16):
    return nn.Sequential(nn.Conv2d(6, f, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(f, 1, 4, 2, 1))


def main():
    random.seed(0)
    torch.manual_seed(0)
    device = "cuda"
    netG, netD = UnetGenerator().to(device), discriminator().to(device)
    trainerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
    trainerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
    gan_loss, l1_loss = nn.BCEWithLogitsLoss(), nn.L1Loss()
    image_pool = ImagePool(50)
    for it in range(130):
        real_in = torch.rand(1, 3, 128, 128).to(device)
        real_out = torch.rand(1, 3, 128, 128).to(device)
        fake_out = netG(real_in)
        fake_concat = image_pool.query(torch.cat([real_in, fake_out], 1))
        trainerD.zero_grad()
        out_f = netD(fake_concat)
        out_r = netD(torch.cat([real_in, real_out], 1))
        errD = (gan_loss(out_r, torch.ones_like(out_r)) + gan_loss(out_f, torch.zeros_like(out_f))) * 0.5
        errD.backward()
        trainerD.step()
        trainerG.zero_grad()
        out = netD(torch.cat([real_in, fake_out], 1))
        errG = gan_loss(out, torch.ones_like(out)) + 100 * l1_loss(real_out, fake_out)
        errG.backward()
        trainerG.step()
        if it % 40 == 0:
            print(it, errD.item(), errG.item(), image_pool.num_imgs)


if __name__ == "__main__":
    main()
