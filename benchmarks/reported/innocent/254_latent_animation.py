# kind: innocent, step callback keeps the latents of a whole denoising run to decode an animation, the list is emptied after each prompt; in the manner of diffusers callback_on_step_end examples
import torch
import torch.nn as nn
from diffusers import DDIMScheduler


class TextCondUNet(nn.Module):
    def __init__(self, ch=24, cond=32):
        super().__init__()
        self.inp = nn.Conv2d(4, ch, 3, padding=1)
        self.emb = nn.Linear(cond + 1, ch)
        self.mid = nn.Sequential(nn.GroupNorm(4, ch), nn.SiLU(), nn.Conv2d(ch, ch, 3, padding=1))
        self.out = nn.Conv2d(ch, 4, 3, padding=1)

    def forward(self, x, t, cond):
        e = self.emb(torch.cat([cond, t.float().view(1, 1).expand(len(x), 1) / 1000], 1))
        h = self.inp(x) + e[:, :, None, None]
        return self.out(h + self.mid(h))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Sequential(nn.ConvTranspose2d(4, 16, 4, 2, 1), nn.SiLU(), nn.Conv2d(16, 3, 3, padding=1))

    def forward(self, z):
        return self.up(z).clamp(-1, 1)


class Pipeline:
    def __init__(self, device):
        self.device = device
        self.unet, self.vae = TextCondUNet().to(device).eval(), Decoder().to(device).eval()
        self.scheduler = DDIMScheduler(num_train_timesteps=1000, beta_schedule="scaled_linear")

    @torch.no_grad()
    def __call__(self, cond, steps=25, size=48, callback_on_step_end=None):
        self.scheduler.set_timesteps(steps, device="cpu")
        latents = torch.randn(2, 4, size, size, device=self.device)
        for i, t in enumerate(self.scheduler.timesteps):
            noise = self.unet(latents, t.to(self.device), cond)
            latents = self.scheduler.step(noise, int(t), latents).prev_sample
            if callback_on_step_end is not None:
                callback_on_step_end(self, i, t, {"latents": latents})
        return self.vae(latents).cpu()


class Animation:
    def __init__(self):
        self.latents = []

    def on_step_end(self, pipe, step, timestep, callback_kwargs):
        self.latents.append(callback_kwargs["latents"].clone())
        return callback_kwargs

    @torch.no_grad()
    def render(self, vae, every=5):
        frames = [vae(z)[0].cpu() for z in self.latents[::every]]
        self.latents.clear()
        return torch.stack(frames)


def main(n_prompts=9):
    torch.manual_seed(0)
    device = torch.device("cuda")
    pipe = Pipeline(device)
    animation = Animation()
    for n in range(n_prompts):
        cond = torch.randn(2, 32, device=device)
        image = pipe(cond, callback_on_step_end=animation.on_step_end)
        collected = len(animation.latents)
        frames = animation.render(pipe.vae)
        print(f"prompt {n}: {tuple(image.shape)}, {collected} latents, {len(frames)} frames")


if __name__ == "__main__":
    main()
