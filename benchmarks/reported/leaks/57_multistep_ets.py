# kind: linear multistep sampler appends each model output to its list and looks only at the last four, the list lives as long as the service; from huggingface/diffusers PR 882 (PNDM, "make sure list cannot grow forever")
import numpy as np
import torch
import torch.nn as nn


class PLMSScheduler:
    def __init__(self, n=1000, beta_start=0.00085, beta_end=0.012):
        betas = np.linspace(beta_start ** 0.5, beta_end ** 0.5, n) ** 2
        self.alphas_cumprod = np.cumprod(1 - betas)
        self.n = n
        self.ets = []
        self.timesteps = None
        self.counter = 0

    def set_timesteps(self, k):
        self.ratio = self.n // k
        self.timesteps = (np.arange(k) * self.ratio)[::-1]
        self.counter = 0

    def step(self, model_output, t, sample):
        self.ets.append(model_output)  # LEAK
        e = self.ets
        if self.counter == 0:
            eps = e[-1]
        elif self.counter == 1:
            eps = (3 * e[-1] - e[-2]) / 2
        elif self.counter == 2:
            eps = (23 * e[-1] - 16 * e[-2] + 5 * e[-3]) / 12
        else:
            eps = (55 * e[-1] - 59 * e[-2] + 37 * e[-3] - 9 * e[-4]) / 24
        self.counter += 1
        return self._prev(sample, t, t - self.ratio, eps)

    def _prev(self, x, t, s, eps):
        a, b = self.alphas_cumprod[t], self.alphas_cumprod[s] if s >= 0 else 1.0
        x0 = (x - (1 - a) ** 0.5 * eps) / a ** 0.5
        return float(b ** 0.5) * x0 + float((1 - b) ** 0.5) * eps


class TinyUNet(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.t = nn.Embedding(1000, c)
        self.a, self.b = nn.Conv2d(4, c, 3, padding=1), nn.Conv2d(c, c, 3, 2, 1)
        self.up, self.out = nn.ConvTranspose2d(c, c, 2, 2), nn.Conv2d(2 * c, 4, 3, padding=1)

    def forward(self, x, t):
        h = torch.relu(self.a(x) + self.t(t)[:, :, None, None])
        return self.out(torch.cat([h, self.up(torch.relu(self.b(h)))], 1))


class Service:
    def __init__(self):
        self.unet = TinyUNet().cuda().half().float().eval()
        self.scheduler = PLMSScheduler()

    @torch.no_grad()
    def text2img(self, seed, steps=8, size=64):
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(4, 4, size, size, generator=g).cuda()
        self.scheduler.set_timesteps(steps)
        for t in self.scheduler.timesteps:
            tt = torch.full((len(x),), int(t), device="cuda")
            x = self.scheduler.step(self.unet(x, tt), int(t), x)
        return x.cpu()


service = Service()
for request in range(20):
    image = service.text2img(seed=request)
    if request % 5 == 0:
        print("request", request, image.shape, round(image.std().item(), 3))
