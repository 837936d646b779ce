# kind: AUTOMATIC1111/stable-diffusion-webui style, "VRAM goes up with every generated image": an undo stack of closures
import torch
from diffusers import DDIMScheduler, UNet2DModel


class Session:
    def __init__(self, size=128, channels=4, batch=4):
        self.unet = UNet2DModel(sample_size=size, in_channels=channels, out_channels=channels, layers_per_block=1,
                                block_out_channels=(32, 64), norm_num_groups=8,
                                down_block_types=("DownBlock2D", "DownBlock2D"),
                                up_block_types=("UpBlock2D", "UpBlock2D")).cuda().eval()
        self.scheduler = DDIMScheduler(num_train_timesteps=1000)
        self.shape = (batch, channels, size, size)
        self.undo = []
        self.current = None

    @torch.no_grad()
    def denoise(self, latents, steps, callback=None):
        self.scheduler.set_timesteps(steps, device="cuda")
        for i, t in enumerate(self.scheduler.timesteps):
            noise = self.unet(latents, t).sample
            latents = self.scheduler.step(noise, t, latents).prev_sample
            if callback is not None:
                callback(i, latents)
        return latents

    def show(self, latents):
        self.current = latents
        return latents[:, :3].float().add(1).div(2).clamp(0, 1).cpu()

    def generate(self, seed, steps=5, preview=None):
        generator = torch.Generator("cpu").manual_seed(seed)
        latents = torch.randn(self.shape, generator=generator).cuda()
        latents = self.denoise(latents, steps, preview)
        self.undo.append(lambda: self.show(latents))  # LEAK
        return self.show(latents)

    def ctrl_z(self):
        if len(self.undo) > 1:
            self.undo.pop()
            return self.undo[-1]()


def ui_loop(session, clicks):
    previews = {}

    def on_step(i, latents):
        previews["last"] = latents.mean().item()

    for click in range(clicks):
        session.generate(seed=click, preview=on_step)
        if click == 30:
            session.ctrl_z()


session = Session()
ui_loop(session, 90)
print(len(session.undo), "images", torch.cuda.memory_allocated() >> 20, "MiB")
