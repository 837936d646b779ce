# kind: adaptive discriminator augmentation, the running r_t statistic keeps the graph; in the manner of an issue of a StyleGAN2-ADA port "OOM after some hundred iterations, only with --aug=ada"
import torch
import torch.nn as nn
import torch.nn.functional as F


class AdaController:
    """raises p when the discriminator gets too sure of the real images"""

    def __init__(self, target=0.6, kimg=5, beta=0.97):
        self.target, self.kimg, self.beta = target, kimg, beta
        self.rt = None
        self.p = 0.0

    def update(self, real_logits, batch):
        sign = torch.tanh(real_logits * 10).mean()
        self.rt = sign if self.rt is None else self.rt * self.beta + sign * (1 - self.beta)  # LEAK
        direction = 1.0 if self.rt.item() > self.target else -1.0
        self.p = min(max(self.p + direction * batch / (self.kimg * 1000), 0.0), 0.8)


def augment(img, p):
    if torch.rand(()) < p:
        img = torch.flip(img, [3])
    if torch.rand(()) < p:
        img = torch.roll(img, int(torch.randint(-3, 4, ())), 2)
    return img


class G(nn.Module):
    def __init__(self, nz=32):
        super().__init__()
        self.fc = nn.Linear(nz, 32 * 4 * 4)
        self.net = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(32, 16, 3, 1, 1), nn.LeakyReLU(0.2),
                                 nn.Upsample(scale_factor=2), nn.Conv2d(16, 3, 3, 1, 1), nn.Tanh())

    def forward(self, z):
        return self.net(self.fc(z).view(-1, 32, 4, 4))


class D(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 3, 2, 1),
                                 nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(32 * 16, 1))

    def forward(self, x):
        return self.net(x)


def training_loop(total=150, batch=16):
    torch.manual_seed(0)
    dev = torch.device("cuda")
    gen, dis, ada = G().to(dev), D().to(dev), AdaController()
    og = torch.optim.Adam(gen.parameters(), 2e-3, betas=(0.0, 0.99))
    od = torch.optim.Adam(dis.parameters(), 2e-3, betas=(0.0, 0.99))
    for it in range(total):
        real = torch.rand(batch, 3, 16, 16, device=dev) * 2 - 1
        z = torch.randn(batch, 32, device=dev)
        og.zero_grad()
        F.softplus(-dis(augment(gen(z), ada.p))).mean().backward()
        og.step()
        od.zero_grad()
        fake_logits = dis(augment(gen(z).detach(), ada.p))
        real_logits = dis(augment(real, ada.p))
        (F.softplus(fake_logits).mean() + F.softplus(-real_logits).mean()).backward(retain_graph=True)
        od.step()
        ada.update(real_logits, batch)
    print("p", ada.p)


training_loop()
