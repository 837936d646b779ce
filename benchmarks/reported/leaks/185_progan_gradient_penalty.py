# kind: backward(create_graph=True) gives merged.grad a graph that refers to merged itself, a cycle through C++ that is never freed, one per batch; after akanimax/pro_gan_pytorch PR 12
import torch as th
import torch.nn as nn


class Generator(nn.Module):
    def __init__(self, latent=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.ConvTranspose2d(latent, 32, 4), nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2), nn.Conv2d(32, 16, 3, padding=1), nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=4), nn.Conv2d(16, 3, 3, padding=1))

    def forward(self, z):
        return self.net(z[:, :, None, None])


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(3, 16, 3, 2, 1)
        self.c2 = nn.Conv2d(16, 32, 3, 2, 1)
        self.c3 = nn.Conv2d(32, 1, 8)
        self.act = nn.LeakyReLU(0.2)

    def forward(self, x):
        return self.c3(self.act(self.c2(self.act(self.c1(x))))).view(-1)


class WGAN_GP:
    def __init__(self, dis, drift=0.001, use_gp=True):
        self.dis = dis
        self.drift = drift
        self.use_gp = use_gp

    def __gradient_penalty(self, real_samps, fake_samps, reg_lambda=10):
        batch_size = real_samps.shape[0]

        # generate random epsilon
        epsilon = th.rand((batch_size, 1, 1, 1)).to(fake_samps.device)

        # create the merge of both real and fake samples
        merged = (epsilon * real_samps) + ((1 - epsilon) * fake_samps)
        merged.requires_grad = True

        # forward pass
        op = self.dis(merged)

        # perform backward pass from op to merged for obtaining the gradients
        op.backward(gradient=th.ones_like(op), create_graph=True)  # LEAK
        gradient = merged.grad

        gradient = gradient.reshape(gradient.shape[0], -1)
        return reg_lambda * ((gradient.norm(p=2, dim=1) - 1) ** 2).mean()

    def dis_loss(self, real_samps, fake_samps):
        fake_out = self.dis(fake_samps)
        real_out = self.dis(real_samps)
        loss = th.mean(fake_out) - th.mean(real_out) + self.drift * th.mean(real_out ** 2)
        if self.use_gp:
            loss += self.__gradient_penalty(real_samps, fake_samps)
        return loss

    def gen_loss(self, _, fake_samps):
        return -th.mean(self.dis(fake_samps))


class ProGAN:
    def __init__(self, device, latent_size=64, n_critic=1):
        self.device, self.latent_size, self.n_critic = device, latent_size, n_critic
        self.gen = Generator(latent_size).to(device)
        self.dis = Discriminator().to(device)
        self.gen_optim = th.optim.Adam(self.gen.parameters(), lr=1e-3, betas=(0.0, 0.99))
        self.dis_optim = th.optim.Adam(self.dis.parameters(), lr=1e-3, betas=(0.0, 0.99))
        self.loss = WGAN_GP(self.dis)

    def optimize_discriminator(self, noise, real_batch):
        loss_val = 0
        for _ in range(self.n_critic):
            fake_samples = self.gen(noise).detach()
            loss = self.loss.dis_loss(real_batch, fake_samples)
            self.dis_optim.zero_grad()
            loss.backward()
            self.dis_optim.step()
            loss_val += loss.item()
        return loss_val / self.n_critic

    def optimize_generator(self, noise, real_batch):
        loss = self.loss.gen_loss(real_batch, self.gen(noise))
        self.gen_optim.zero_grad()
        loss.backward()
        self.gen_optim.step()
        return loss.item()


if __name__ == "__main__":
    th.manual_seed(0)
    gan = ProGAN(th.device("cuda"))
    for i in range(80):
        images = th.randn(32, 3, 32, 32).to(gan.device)
        noise = th.randn(32, gan.latent_size).to(gan.device)
        d = gan.optimize_discriminator(noise, images)
        g = gan.optimize_generator(noise, images)
        if i % 20 == 0:
            print("batch: %d  d_loss: %f  g_loss: %f" % (i, d, g))
