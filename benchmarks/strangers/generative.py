"""Models of diffusers, as its training scripts use them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

STEPS = 12


def unet_ema() -> None:
    """Unconditional pictures in half precision, with a running mean."""
    from diffusers import DDPMScheduler, UNet2DModel
    from diffusers.training_utils import EMAModel

    model = UNet2DModel(
        sample_size=64,
        block_out_channels=(128, 128, 256, 256, 512, 512),
        down_block_types=(
            *("DownBlock2D", "DownBlock2D", "DownBlock2D", "DownBlock2D"),
            *("AttnDownBlock2D", "DownBlock2D"),
        ),
        up_block_types=(
            *("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
            *("UpBlock2D", "UpBlock2D", "UpBlock2D"),
        ),
    ).cuda()
    mean = EMAModel(model.parameters(), decay=0.9999, model_cls=UNet2DModel)
    noising = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        clean = torch.randn(24, 3, 64, 64, device="cuda")
        noise = torch.randn_like(clean)
        times = torch.randint(0, 1000, (24,), device="cuda").long()
        noisy = noising.add_noise(clean, noise, times)
        with torch.autocast("cuda", torch.bfloat16):
            found = model(noisy, times).sample
        loss = F.mse_loss(found.float(), noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean.step(model.parameters())


def dit() -> None:
    """A transformer over patches of latents."""
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=12,
        attention_head_dim=64,
        out_channels=8,
        num_layers=12,
        sample_size=32,
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)
    for _ in range(STEPS):
        x = torch.randn(32, 4, 32, 32, device="cuda")
        times = torch.randint(0, 1000, (32,), device="cuda")
        labels = torch.randint(0, 1000, (32,), device="cuda")
        found = model(x, timestep=times, class_labels=labels).sample
        loss = F.mse_loss(found.chunk(2, 1)[0], torch.randn_like(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def vae() -> None:
    """Encodes pictures, and decodes what is drawn from the code."""
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(64, 128, 256, 256),
        layers_per_block=2,
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=4.5e-6, betas=(0.5, 0.9))
    for _ in range(STEPS):
        x = torch.randn(8, 3, 192, 192, device="cuda")
        code = model.encode(x).latent_dist
        again = model.decode(code.sample()).sample
        loss = F.l1_loss(again, x) + 1e-6 * code.kl().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def text_to_image() -> None:
    """The U-Net is trained; the encoders of pictures and text are frozen."""
    from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    text = CLIPTextModel(CLIPTextConfig(hidden_size=512)).cuda()
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(64, 128, 256, 256),
    ).cuda()
    text.requires_grad_(False)
    vae.requires_grad_(False)
    with torch.device("cuda"):
        unet = UNet2DConditionModel(
            sample_size=32,
            block_out_channels=(192, 384, 768, 768),
            cross_attention_dim=512,
            attention_head_dim=8,
        )
    noising = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-5)
    for _ in range(STEPS):
        pictures = torch.randn(12, 3, 256, 256, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            with torch.no_grad():
                latents = vae.encode(pictures).latent_dist.sample() * 0.18215
                words = text(torch.randint(1000, (12, 77), device="cuda"))[0]
            noise = torch.randn_like(latents)
            times = torch.randint(0, 1000, (12,), device="cuda")
            noisy = noising.add_noise(latents, noise, times)
            found = unet(noisy, times, words).sample
            loss = F.mse_loss(found.float(), noise.float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


PROGRAMS = (unet_ema, dit, vae, text_to_image)
