# kind: historical averaging of a GAN's discriminator keeps a copy of the parameters of each step to take their mean; from GAN training-trick code (Improved Techniques for Training GANs, ganhacks)
import torch
import torch.nn as nn

latent_dim, batch_size, n_steps = 32, 32, 66
cuda = torch.cuda.is_available()
Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(latent_dim, 64), nn.LeakyReLU(0.2), nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 256), nn.Tanh())

    def forward(self, z):
        return self.model(z).view(-1, 1, 16, 16)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(256, 340), nn.LeakyReLU(0.2), nn.Linear(340, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def forward(self, img):
        return self.model(img.flatten(1))


class HistoricalAverage(object):
    def __init__(self, module, weight=1e-3):
        self.module = module
        self.weight = weight
        self.past = {name: [] for name, _ in module.named_parameters()}

    def remember(self):
        for name, p in self.module.named_parameters():
            self.past[name].append(p.detach().clone())  # LEAK

    def penalty(self):
        total = 0.0
        for name, p in self.module.named_parameters():
            if self.past[name]:
                mean = sum(self.past[name]) / len(self.past[name])
                total = total + (p - mean).pow(2).sum()
        return self.weight * total


def real_images(n):
    img = torch.full((n, 1, 16, 16), -1.0)
    for k in range(n):
        a, b = torch.randint(0, 9, (2,)).tolist()
        img[k, 0, a:a + 6, b:b + 6] = 1.0
    return img


generator, discriminator = Generator(), Discriminator()
adversarial_loss = nn.BCEWithLogitsLoss()
if cuda:
    generator.cuda()
    discriminator.cuda()
    adversarial_loss.cuda()

optimizer_G = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
average = HistoricalAverage(discriminator)

for i in range(n_steps):
    valid = torch.ones(batch_size, 1).type(Tensor) * 0.9
    fake = torch.zeros(batch_size, 1).type(Tensor)
    real_imgs = real_images(batch_size).type(Tensor)

    optimizer_G.zero_grad()
    gen_imgs = generator(torch.randn(batch_size, latent_dim).type(Tensor))
    g_loss = adversarial_loss(discriminator(gen_imgs), valid)
    g_loss.backward()
    optimizer_G.step()

    optimizer_D.zero_grad()
    d_loss = (adversarial_loss(discriminator(real_imgs), valid) + adversarial_loss(discriminator(gen_imgs.detach()), fake)) / 2
    (d_loss + average.penalty()).backward()
    optimizer_D.step()
    average.remember()

    if i % 30 == 0:
        print("[Batch %d/%d] [D loss: %f] [G loss: %f]" % (i, n_steps, d_loss.item(), g_loss.item()))
