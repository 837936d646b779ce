# kind: preview callback made once for a sampling service is a closure over a list of decoded frames, which grows over all images; from diffusers callback_on_step_end recipes and web UI live previews
import torch
from torch import nn
from diffusers import DDIMScheduler


class Denoise(nn.Module):
    def __init__(self, c=4, h=32):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, h), nn.SiLU(), nn.Linear(h, h))
        self.inp, self.mid, self.out = nn.Conv2d(c, h, 3, 1, 1), nn.Conv2d(h, h, 3, 1, 1), nn.Conv2d(h, c, 3, 1, 1)

    def forward(self, x, t):
        e = self.time(t.float().view(-1, 1) / 1000)[:, :, None, None]
        h = torch.nn.functional.silu(self.inp(x) + e)
        return self.out(torch.nn.functional.silu(self.mid(h)) + h)


class CheapDecoder(nn.Module):
    """Linear map from latents to RGB, as used for previews."""

    def __init__(self):
        super().__init__()
        self.rgb = nn.Conv2d(4, 3, 1)
        self.up = nn.Upsample(scale_factor=8, mode="bilinear")

    def forward(self, z):
        return self.up(self.rgb(z).clamp(-1, 1))


class Pipeline:
    def __init__(self, unet, scheduler):
        self.unet, self.scheduler = unet, scheduler

    @torch.no_grad()
    def __call__(self, seed, steps, callback_on_step_end=None):
        g = torch.Generator().manual_seed(seed)
        latents = torch.randn(1, 4, 24, 24, generator=g).cuda()
        self.scheduler.set_timesteps(steps)
        for i, t in enumerate(self.scheduler.timesteps):
            eps = self.unet(latents, t.cuda())
            latents = self.scheduler.step(eps, t, latents).prev_sample
            if callback_on_step_end is not None:
                kwargs = callback_on_step_end(self, i, t, {"latents": latents})
                latents = kwargs.pop("latents", latents)
        return latents


def make_preview(decoder, every=1, strip=6):
    frames = []

    def on_step_end(pipe, i, t, kwargs):
        if i % every == 0:
            frames.append(decoder(kwargs["latents"])[0])  # LEAK
        return kwargs

    def contact_sheet():
        return torch.cat(frames[-strip:], dim=2).cpu()

    return on_step_end, contact_sheet


torch.manual_seed(0)
pipe = Pipeline(Denoise().cuda().eval(), DDIMScheduler(num_train_timesteps=1000, clip_sample=True))
preview, sheet = make_preview(CheapDecoder().cuda().eval())
prompts = ["a castle", "a red fox", "mountains at dawn", "an old ship", "a robot", "a bowl of fruit", "a street in rain", "a lighthouse"]
for n, prompt in enumerate(prompts * 2):
    image = pipe(seed=n, steps=12, callback_on_step_end=preview)
    if n % 4 == 0:
        print(f"{prompt!r}: std {image.std().item():.2f}, sheet {tuple(sheet().shape)}")
