# kind: DPM-Solver++ of diffusers holds its last model outputs, x0 predictions are collected over one image for a strip and dropped with it, more steps for later images; from huggingface/diffusers issue 8711
import torch
from diffusers import DPMSolverMultistepScheduler, UNet2DModel


class Sampler:
    def __init__(self):
        torch.manual_seed(0)
        self.unet = UNet2DModel(sample_size=32, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(32, 32),
                                down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"),
                                norm_num_groups=8).cuda().eval()
        self.scheduler = DPMSolverMultistepScheduler(num_train_timesteps=1000, solver_order=3)

    @torch.no_grad()
    def draw(self, steps, n=4):
        self.scheduler.set_timesteps(steps)
        x = torch.randn(n, 3, 32, 32, device="cuda")
        strip = []
        for t in self.scheduler.timesteps:
            eps = self.unet(x, t).sample
            strip.append((x - eps).clamp(-1, 1))
            x = self.scheduler.step(eps, t, x).prev_sample
        film = torch.cat([s[:1] for s in strip], 3).cpu()
        return x.cpu(), film


if __name__ == "__main__":
    s = Sampler()
    for i in range(14):
        steps = [6, 8, 10, 12][min(i // 2, 3)]
        img, film = s.draw(steps)
        print("image", i, "steps", steps, "film", tuple(film.shape))
