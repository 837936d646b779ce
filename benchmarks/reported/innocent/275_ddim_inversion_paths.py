# kind: real-image editing with DDIM inversion, all latents of the path are stored; why it is none: the next image's path takes the place of the last one
import torch
from diffusers import DDIMInverseScheduler, DDIMScheduler, UNet2DModel


class Inverter:
    def __init__(self, steps=6):
        self.unet = UNet2DModel(sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, norm_num_groups=4,
                                block_out_channels=(8, 16), down_block_types=("DownBlock2D", "DownBlock2D"),
                                up_block_types=("UpBlock2D", "UpBlock2D")).cuda().eval()
        self.fwd, self.inv = DDIMScheduler(200), DDIMInverseScheduler(200)
        self.fwd.set_timesteps(steps)
        self.inv.set_timesteps(steps)
        self.path = []

    def invert(self, x):
        self.path = [x]
        for t in self.inv.timesteps:
            x = self.inv.step(self.unet(x, t).sample, t, x).prev_sample
            self.path.append(x)
        return x

    def edit(self, x, strength):
        for i, t in enumerate(self.fwd.timesteps):
            anchor = self.path[-2 - i]
            x = self.fwd.step(self.unet(x, t).sample, t, x).prev_sample
            x = strength * x + (1 - strength) * anchor
        return x


@torch.no_grad()
def main():
    torch.manual_seed(0)
    inv = Inverter()
    for picture in range(45):
        z = inv.invert(torch.randn(4, 4, 16, 16, device="cuda"))
        out = inv.edit(z, 0.7)
    print(out.mean().item(), len(inv.path))


if __name__ == "__main__":
    main()
