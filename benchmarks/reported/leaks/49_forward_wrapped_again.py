# kind: each request wraps the decoder's forward once more with functools.partial and its control hint, the old wrapper is the next one's inner function; from hijacks of model.forward (facebookresearch/fairscale PR 424 comment, AUTOMATIC1111/stable-diffusion-webui issue 12716)
import functools

import torch
import torch.nn as nn


class Decoder(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        self.stem = nn.Conv2d(4, ch, 3, padding=1)
        self.body = nn.Sequential(nn.GroupNorm(4, ch), nn.SiLU(), nn.Conv2d(ch, ch, 3, padding=1))
        self.out = nn.Conv2d(ch, 3, 1)

    def forward(self, z, residual=None):
        h = self.stem(z)
        if residual is not None:
            h = h + residual
        return self.out(h + self.body(h))


class ControlBranch(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, ch, 3, padding=1), nn.SiLU(), nn.Conv2d(ch, ch, 3, padding=1))

    def forward(self, edges):
        return self.net(edges)


def with_control(inner, hint, z, residual=None, weight=1.0):
    if residual is None:
        residual = weight * hint
    return inner(z, residual=residual)


class Api:
    def __init__(self):
        self.decoder = Decoder().cuda().eval()
        self.control = ControlBranch().cuda().eval()
        self.served = 0

    def hijack(self, edges):
        hint = self.control(edges)
        self.decoder.forward = functools.partial(with_control, self.decoder.forward, hint)  # LEAK

    @torch.no_grad()
    def img2img(self, latent, edges, steps=2):
        self.hijack(edges.cuda())
        z = latent.cuda()
        for _ in range(steps):
            img = self.decoder(z)
            z = torch.cat([img, z[:, :1]], 1).tanh()
        self.served += 1
        return img.cpu()


api = Api()
for i in range(110):
    out = api.img2img(torch.randn(1, 4, 112, 112), (torch.rand(1, 1, 112, 112) > 0.8).float())
    if api.served % 22 == 0:
        print("served", api.served, tuple(out.shape), "std %.3f" % out.std())
