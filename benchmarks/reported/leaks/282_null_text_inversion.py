# kind: null-text inversion of many images with diffusers, the optimised embeddings stay in one list of the editor; in the manner of a prompt-to-prompt issue "works for the first images, OOM for a folder"
import torch
import torch.nn.functional as F
from diffusers import DDIMScheduler, UNet2DConditionModel


def tiny_unet():
    return UNet2DConditionModel(sample_size=8, in_channels=4, out_channels=4, layers_per_block=1,
                                block_out_channels=(16, 32), norm_num_groups=8, cross_attention_dim=64,
                                attention_head_dim=4, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                                up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))


class NullInversion:
    def __init__(self, unet, steps=3, inner=1):
        self.unet = unet.requires_grad_(False).to("cuda")
        self.scheduler = DDIMScheduler(num_train_timesteps=100, clip_sample=False)
        self.scheduler.set_timesteps(steps)
        self.inner = inner
        self.null = torch.randn(1, 77, 64, device="cuda")
        self.uncond_embeddings = []

    @torch.no_grad()
    def ddim_loop(self, latent, cond):
        trajectory = [latent]
        for t in reversed(self.scheduler.timesteps):
            eps = self.unet(latent, t, cond).sample
            latent = latent + 0.1 * eps
            trajectory.append(latent)
        return trajectory

    def optimise(self, trajectory, cond):
        uncond = self.null.clone()
        latent = trajectory[-1]
        for i, t in enumerate(self.scheduler.timesteps):
            uncond = uncond.detach().clone().requires_grad_(True)
            opt = torch.optim.Adam([uncond], lr=1e-2)
            target = trajectory[-i - 2]
            with torch.no_grad():
                eps_c = self.unet(latent, t, cond).sample
            for _ in range(self.inner):
                eps_u = self.unet(latent, t, uncond).sample
                pred = self.scheduler.step(eps_u + 7.5 * (eps_c - eps_u), t, latent).prev_sample
                loss = F.mse_loss(pred, target)
                opt.zero_grad()
                loss.backward()
                opt.step()
            self.uncond_embeddings.append(uncond.detach())  # LEAK
            latent = pred.detach()
        return latent

    def invert(self, latent, cond):
        return self.optimise(self.ddim_loop(latent, cond), cond)


def main():
    torch.manual_seed(0)
    inverter = NullInversion(tiny_unet())
    for image in range(42):
        out = inverter.invert(torch.randn(1, 4, 8, 8, device="cuda"), torch.randn(1, 77, 64, device="cuda"))
    print(out.std().item())


if __name__ == "__main__":
    main()
