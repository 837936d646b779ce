# CARD: 24GiB
# KNOBS: BATCH=2 SIZE=832 AUTOCAST DTYPE SLICING CHECKPOINT=UpDecoderBlock2D,ResnetBlock2D
# EXPERT: the frozen decoder's activations at 832 x 832 with up to 256 channels must be kept since the gradient goes through it to the latents; enough: BATCH=1, DTYPE=bf16 of the VAE, CHECKPOINT=UpDecoderBlock2D or ResnetBlock2D, SIZE=512; not enough: SLICING (all slices' graphs are kept), AUTOCAST (group norms save fp32)
# Source: huggingface/diffusers 10350 (the VAE decoder of SD 2.1 in a training pipeline: 15 GB for one [1,4,96,96] latent, OOM at a larger batch); diffusers with accelerate
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import AutoencoderKL
from torch.utils.data import DataLoader, Dataset

import knobs

BATCH = int(os.environ.get("BATCH", 2))
SIZE = int(os.environ.get("SIZE", 832))
LATENT = SIZE // 8


class Refiner(nn.Module):
    """Small residual network which restores the latents of degraded photographs."""

    def __init__(self, width=320, blocks=8):
        super().__init__()
        self.head = nn.Conv2d(4, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1),
                          nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
            for _ in range(blocks))
        self.tail = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, z):
        h = self.head(z)
        for block in self.blocks:
            h = h + block(h)
        return z + self.tail(h)


class Pairs(Dataset):
    """(latent of the degraded picture, clean picture)"""

    def __len__(self):
        return BATCH * 4

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(4, LATENT, LATENT, generator=g), torch.rand(3, SIZE, SIZE, generator=g) * 2 - 1


def main():
    torch.manual_seed(0)
    accelerator = Accelerator()
    with torch.device("cuda"):
        vae = AutoencoderKL(  # the configuration of stabilityai/stable-diffusion-2-1
            in_channels=3, out_channels=3, latent_channels=4, sample_size=768, norm_num_groups=32, layers_per_block=2,
            block_out_channels=(128, 256, 512, 512), down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4, scaling_factor=0.18215)
        model = Refiner()
    vae.requires_grad_(False)
    vae.eval()
    knobs.apply(vae)
    if os.environ.get("SLICING") == "1":
        vae.enable_slicing()

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Pairs(), batch_size=BATCH))
    for step, (z, image) in enumerate(loader):
        with knobs.autocast():
            latents = model(z)
            decoded = vae.decode((latents / vae.config.scaling_factor).to(vae.dtype), return_dict=False)[0]
            loss = F.l1_loss(decoded.float(), image) + 0.1 * F.mse_loss(latents.float(), z)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
