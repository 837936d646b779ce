# kind: first-block cache keeps residuals for the contexts cond and uncond only and is reset after each picture, pictures get larger in the first half; after unslothai/unsloth PR 6703
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel
from diffusers.hooks import FirstBlockCacheConfig

torch.manual_seed(8)
device = "cuda"


def grid_ids(side):
    ids = torch.zeros(side, side, 3)
    ids[..., 1] = torch.arange(side)[:, None]
    ids[..., 2] = torch.arange(side)[None, :]
    return ids.reshape(-1, 3).to(device)


class Service:
    def __init__(self):
        self.transformer = FluxTransformer2DModel(
            patch_size=1, in_channels=4, num_layers=1, num_single_layers=2, attention_head_dim=32,
            num_attention_heads=8, joint_attention_dim=32, pooled_projection_dim=32,
            axes_dims_rope=[8, 12, 12]).to(device).eval()
        self.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.08))
        self.uncond = torch.zeros(1, 8, 32, device=device)
        self.txt_ids = torch.zeros(8, 3, device=device)

    def velocity(self, name, latents, t, embeds, img_ids):
        with self.transformer.cache_context(name):
            return self.transformer(
                hidden_states=latents, timestep=t.expand(1) / 1000, encoder_hidden_states=embeds,
                pooled_projections=embeds.mean(1), txt_ids=self.txt_ids, img_ids=img_ids, return_dict=False)[0]

    @torch.no_grad()
    def picture(self, embeds, side, steps=2, guidance=4.0):
        scheduler = FlowMatchEulerDiscreteScheduler()
        scheduler.set_timesteps(steps, device=device)
        latents = torch.randn(1, side * side, 4, device=device)
        ids = grid_ids(side)
        for t in scheduler.timesteps:
            cond = self.velocity("cond", latents, t, embeds, ids)
            uncond = self.velocity("uncond", latents, t, self.uncond, ids)
            latents = scheduler.step(uncond + guidance * (cond - uncond), t, latents, return_dict=False)[0]
        self.transformer._reset_stateful_cache()
        return latents.std().item()


def main():
    service = Service()
    gen = torch.Generator().manual_seed(1)
    for n in range(42):
        side = min(8 + n // 2, 20)
        embeds = torch.randn(1, 8, 32, generator=gen).to(device)
        spread = service.picture(embeds, side)
        if n % 7 == 6:
            print(f"picture {n + 1}: {side}x{side} latents, std {spread:.3f}")


if __name__ == "__main__":
    main()
