# kind: first-block cache of a diffusion transformer keeps its residuals per context name, the service names the context after the request and never resets; after huggingface/diffusers PR 11180
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel
from diffusers.hooks import FirstBlockCacheConfig

torch.manual_seed(11)
device = "cuda"


def build_transformer():
    return FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=2, num_single_layers=2, attention_head_dim=32,
        num_attention_heads=8, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=[8, 12, 12],
    ).to(device).eval()


def image_ids(side):
    ids = torch.zeros(side, side, 3)
    ids[..., 1] = torch.arange(side)[:, None]
    ids[..., 2] = torch.arange(side)[None, :]
    return ids.reshape(-1, 3).to(device)


class Studio:
    def __init__(self, side=20):
        self.transformer = build_transformer()
        self.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.05))
        self.side = side
        self.img_ids = image_ids(side)
        self.txt_ids = torch.zeros(16, 3, device=device)

    @torch.no_grad()
    def render(self, request_id, prompt_embeds, pooled, steps):
        scheduler = FlowMatchEulerDiscreteScheduler()
        scheduler.set_timesteps(steps, device=device)
        latents = torch.randn(1, self.side ** 2, 4, device=device)
        for t in scheduler.timesteps:
            with self.transformer.cache_context(f"request-{request_id}"):  # LEAK
                velocity = self.transformer(  # ALSO
                    hidden_states=latents,
                    timestep=t.expand(1) / 1000,
                    encoder_hidden_states=prompt_embeds,
                    pooled_projections=pooled,
                    txt_ids=self.txt_ids,
                    img_ids=self.img_ids,
                    return_dict=False,
                )[0]
            latents = scheduler.step(velocity, t, latents, return_dict=False)[0]
        return latents.reshape(self.side, self.side, 4).mean((0, 1)).tolist()


def main():
    studio = Studio()
    gen = torch.Generator().manual_seed(3)
    for request_id in range(44):
        prompt = torch.randn(1, 16, 32, generator=gen).to(device)
        pooled = torch.randn(1, 32, generator=gen).to(device)
        color = studio.render(request_id, prompt, pooled, steps=2)
        if request_id % 11 == 10:
            print(f"request {request_id + 1}: mean latent {[round(c, 3) for c in color]}")


if __name__ == "__main__":
    main()
