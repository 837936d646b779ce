# CARD: 12GiB
# KNOBS: BATCH=4 SIZE=256 PATCH CHECKPOINT=WGAN_VGG_generator OPT FUSED
# EXPERT: the critic flattens 64x64x256 features into Linear(1048576, 1024) because whole slices are fed to a network made for 64x64 patches: a billion weights, their gradient and Adam's two moments; train on patches (--patch_size 64); the batch size hardly matters
# after yyqqss09/ldct_denoising issue 6 (https://github.com/yyqqss09/ldct_denoising/issues/6), there with 512x512 on 32 GB
import os

import torch
import torch.nn as nn
import torchvision
from torch.utils.data import DataLoader, Dataset

import knobs

SIZE = 64 if os.environ.get("PATCH") == "1" else int(os.environ.get("SIZE", 256))
BATCH = int(os.environ.get("BATCH", 4))


class WGAN_VGG_generator(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(1, 32, 3, 1, 1), nn.ReLU()]
        for _ in range(2, 8):
            layers.append(nn.Conv2d(32, 32, 3, 1, 1))
            layers.append(nn.ReLU())
        layers.extend([nn.Conv2d(32, 1, 3, 1, 1), nn.ReLU()])
        self.net = nn.Sequential(*layers)

    def forward(self, x):
        return self.net(x)


class WGAN_VGG_discriminator(nn.Module):
    def __init__(self, input_size):
        super().__init__()

        def conv_output_size(input_size, kernel_size_list, stride_list):
            n = (input_size - kernel_size_list[0]) // stride_list[0] + 1
            for k, s in zip(kernel_size_list[1:], stride_list[1:]):
                n = (n - k) // s + 1
            return n

        def add_block(layers, ch_in, ch_out, stride):
            layers.append(nn.Conv2d(ch_in, ch_out, 3, stride, 1))
            layers.append(nn.LeakyReLU())
            return layers
        layers = []
        for ch_in, ch_out, stride in [(1, 64, 1), (64, 64, 2), (64, 128, 1), (128, 128, 2), (128, 256, 1), (256, 256, 1)]:
            add_block(layers, ch_in, ch_out, stride)
        self.output_size = input_size // 4
        self.net = nn.Sequential(*layers)
        self.fc1 = nn.Linear(256 * self.output_size * self.output_size, 1024)
        self.fc2 = nn.Linear(1024, 1)
        self.lrelu = nn.LeakyReLU()

    def forward(self, x):
        out = self.net(x)
        out = out.view(-1, 256 * self.output_size * self.output_size)
        out = self.lrelu(self.fc1(out))
        return self.fc2(out)


class WGAN_VGG_FeatureExtractor(nn.Module):
    def __init__(self):
        super().__init__()
        vgg19_model = torchvision.models.vgg19(weights=None)
        self.feature_extractor = nn.Sequential(*list(vgg19_model.features.children())[:35])

    def forward(self, x):
        return self.feature_extractor(x)


class WGAN_VGG(nn.Module):
    def __init__(self, input_size):
        super().__init__()
        self.generator = WGAN_VGG_generator()
        with torch.device("cuda"):  # a billion weights
            self.discriminator = WGAN_VGG_discriminator(input_size)
        self.feature_extractor = WGAN_VGG_FeatureExtractor()
        self.p_criterion = nn.L1Loss()

    def d_loss(self, x, y, gp=True):
        fake = self.generator(x)
        d_real = self.discriminator(y)
        d_fake = self.discriminator(fake)
        d_loss = -torch.mean(d_real) + torch.mean(d_fake)
        return d_loss + self.gp(y, fake) if gp else d_loss

    def g_loss(self, x, y, perceptual=True):
        fake = self.generator(x)
        g_loss = -torch.mean(self.discriminator(fake))
        if perceptual:
            g_loss = g_loss + 0.1 * self.p_loss(x, y)
        return g_loss

    def p_loss(self, x, y):
        fake = self.generator(x).repeat(1, 3, 1, 1)
        real = y.repeat(1, 3, 1, 1)
        return self.p_criterion(self.feature_extractor(fake), self.feature_extractor(real))

    def gp(self, y, fake, lambda_=10):
        a = torch.rand((y.size(0), 1, 1, 1), device="cuda")
        interp = (a * y + (1 - a) * fake).requires_grad_(True)
        d_interp = self.discriminator(interp)
        fake_ = torch.ones(y.shape[0], 1, device="cuda")
        gradients = torch.autograd.grad(outputs=d_interp, inputs=interp, grad_outputs=fake_, create_graph=True,
                                        retain_graph=True, only_inputs=True)[0]
        gradients = gradients.view(gradients.size(0), -1)
        return ((gradients.norm(2, dim=1) - 1) ** 2).mean() * lambda_


class ct_dataset(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        full = torch.rand(1, SIZE, SIZE)
        return full + 0.1 * torch.randn_like(full), full


def train():
    model = WGAN_VGG(input_size=SIZE).cuda()
    knobs.apply(model)
    print("weights: MiB", torch.cuda.memory_allocated() // 2 ** 20)
    optimizer_g = torch.optim.Adam(model.generator.parameters(), lr=1e-5)
    optimizer_d = torch.optim.Adam(model.discriminator.parameters(), lr=1e-5)
    for it, (x, y) in enumerate(DataLoader(ct_dataset(), batch_size=BATCH, shuffle=True)):
        x, y = x.cuda(), y.cuda()
        # discriminator
        optimizer_d.zero_grad()
        model.discriminator.zero_grad()
        for _ in range(4):
            d_loss = model.d_loss(x, y, gp=True)
            d_loss.backward()
            optimizer_d.step()
        # generator, perceptual loss
        optimizer_g.zero_grad()
        model.generator.zero_grad()
        g_loss = model.g_loss(x, y, perceptual=True)
        g_loss.backward()
        optimizer_g.step()
        print(f"iter {it} d_loss {d_loss.item():.6f} g_loss {g_loss.item():.6f}")
        if it == 1:
            break
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    train()
