# kind: every intermediate latent of a sampled image is returned in a list for a strip, made into one small picture and dropped; step counts differ per request; from CompVis/stable-diffusion (DDIMSampler intermediates) and diffusers callbacks
import torch
from torch import nn
from diffusers import DDIMScheduler


class TinyUNet(nn.Module):
    def __init__(self, c=3, h=24):
        super().__init__()
        self.t = nn.Embedding(1000, h)
        self.a, self.b = nn.Conv2d(c, h, 3, 1, 1), nn.Conv2d(h, c, 3, 1, 1)

    def forward(self, x, t):
        return self.b(nn.functional.silu(self.a(x) + self.t(t)[:, :, None, None]))


class Sampler:
    def __init__(self, net):
        self.net = net
        self.sched = DDIMScheduler(num_train_timesteps=1000, clip_sample=True)

    @torch.no_grad()
    def sample(self, steps, n=2, side=80, log_every_t=1):
        self.sched.set_timesteps(steps)
        img = torch.randn(n, 3, side, side, device="cuda")
        intermediates = {"x_inter": [img], "pred_x0": [img]}
        for i, t in enumerate(self.sched.timesteps):
            eps = self.net(img, t.repeat(n).cuda())
            out = self.sched.step(eps, t, img)
            img = out.prev_sample
            if i % log_every_t == 0 or i == steps - 1:
                intermediates["x_inter"].append(img)
                intermediates["pred_x0"].append(out.pred_original_sample)
        return img, intermediates


def strip(frames, width=8):
    pick = frames[::max(1, len(frames) // width)][:width]
    small = [nn.functional.avg_pool2d(f[:1], 4)[0] for f in pick]
    return torch.cat(small, 2).cpu()


torch.manual_seed(0)
sampler = Sampler(TinyUNet().cuda().eval())
gallery = []
for n, steps in enumerate([4, 8, 12, 16, 20, 24, 24, 16, 8, 8, 4, 4, 4, 4]):
    image, mid = sampler.sample(steps)
    gallery.append((strip(mid["x_inter"]), strip(mid["pred_x0"])))
    if n % 4 == 0:
        print(f"image {n}: {steps} steps, std {image.std().item():.2f}, strip {tuple(gallery[-1][0].shape)}")
    del image, mid
