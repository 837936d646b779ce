# kind: attention processor stores the maps of each layer and denoising step, the store is not cleared between images; from Stability-AI/stablediffusion pull request 431, huggingface/diffusers issue 536
from collections import defaultdict

import torch
import torch.nn as nn
from diffusers import DDIMScheduler


class AttnStore:
    def __init__(self):
        self.step_store = defaultdict(list)

    def __call__(self, probs, name):
        self.step_store[name].append(probs)  # LEAK

    def aggregate(self, name):
        return torch.stack(self.step_store[name][-4:]).mean(0)


class CrossAttention(nn.Module):
    def __init__(self, dim, context_dim, name, heads=4):
        super().__init__()
        self.name, self.heads = name, heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(context_dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.processor = None

    def forward(self, x, context):
        split = lambda t: t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q = split(self.to_q(x))
        k, v = map(split, self.to_kv(context).chunk(2, -1))
        probs = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        if self.processor is not None:
            self.processor(probs, self.name)  # ALSO
        return self.to_out((probs @ v).transpose(1, 2).flatten(2))


class UNet(nn.Module):
    def __init__(self, dim=64, context_dim=32):
        super().__init__()
        self.conv_in = nn.Conv2d(4, dim, 3, padding=1)
        self.time = nn.Linear(1, dim)
        self.attn = nn.ModuleList(CrossAttention(dim, context_dim, f"{p}_cross") for p in ("down", "mid", "up"))
        self.conv_out = nn.Conv2d(dim, 4, 3, padding=1)

    def forward(self, latents, t, context):
        h = self.conv_in(latents) + self.time(t.float().view(-1, 1) / 1000)[..., None, None]
        b, c, hh, ww = h.shape
        x = h.flatten(2).transpose(1, 2)
        for layer in self.attn:
            x = x + layer(x, context)
        return self.conv_out(x.transpose(1, 2).view(b, c, hh, ww))


class Pipeline:
    def __init__(self, unet, scheduler, guidance_scale=5.0):
        self.unet, self.scheduler, self.guidance = unet.eval(), scheduler, guidance_scale
        self.text = nn.Embedding(100, 32).cuda()

    def register_attention_control(self, controller):
        for layer in self.unet.attn:
            layer.processor = controller

    @torch.no_grad()
    def __call__(self, prompt_ids, num_inference_steps=8):
        context = self.text(torch.tensor([[0] * len(prompt_ids), prompt_ids], device="cuda"))
        latents = torch.randn(1, 4, 16, 16, device="cuda")
        self.scheduler.set_timesteps(num_inference_steps, device="cuda")
        for t in self.scheduler.timesteps:
            eps_uncond, eps_text = self.unet(latents.repeat(2, 1, 1, 1), t, context).chunk(2)
            noise = eps_uncond + self.guidance * (eps_text - eps_uncond)
            latents = self.scheduler.step(noise, t, latents).prev_sample
        return latents


def main():
    torch.manual_seed(0)
    scheduler = DDIMScheduler(num_train_timesteps=1000, clip_sample=True)
    pipe = Pipeline(UNet().cuda(), scheduler)
    store = AttnStore()
    pipe.register_attention_control(store)
    gen = torch.Generator().manual_seed(5)
    for n in range(25):
        prompt = torch.randint(1, 100, (8,), generator=gen).tolist()
        image = pipe(prompt)
        heat = store.aggregate("mid_cross")[1].mean(0).view(16, 16, -1)
        if n % 8 == 0:
            print(f"image {n} std {image.std().item():.3f} focus {heat.amax().item():.3f}")


if __name__ == "__main__":
    main()
