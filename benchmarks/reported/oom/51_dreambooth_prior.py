# CARD: 24GiB
# KNOBS: BATCH=1 RESOLUTION=512 PRIOR=1 GRAD_CKPT XFORMERS TRAIN_TEXT_ENCODER=1 PRECISION=fp16 CHECKPOINT=ResnetBlock2D,BasicTransformerBlock OPT FUSED
# EXPERT: 860 M (UNet) and 123 M (text encoder) parameters with fp32 gradients and Adam moments take 14.7 GiB whatever the batch, and the plain attention of 4096 tokens of two images (instance and class) with the fp16 copies of autocast does not fit beside them in the second step; gradient checkpointing (or only of the transformer blocks), memory-efficient attention, no prior preservation, resolution 384, SGD/Adafactor or 8-bit Adam are each enough; a frozen text encoder, a fused optimizer, bf16 instead of fp16 or checkpointing only the residual blocks is not; the batch is 1 already
# Source: huggingface/diffusers 696 (out of memory with prior_preservation on a 16 GB T4; a table for a 24 GB card: only gradient checkpointing (21.9 GB) or 8-bit Adam (23.4 GB) fit); diffusers, transformers, accelerate
import itertools
import os

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from diffusers.optimization import get_scheduler
from torch.utils.data import DataLoader, Dataset
from transformers import CLIPTextConfig, CLIPTextModel

import knobs

args = {
    "train_batch_size": int(os.environ.get("BATCH", 1)),
    "resolution": int(os.environ.get("RESOLUTION", 512)),
    "with_prior_preservation": os.environ.get("PRIOR", "1") == "1",
    "prior_loss_weight": 1.0,
    "gradient_checkpointing": os.environ.get("GRAD_CKPT", "0") == "1",
    "train_text_encoder": os.environ.get("TRAIN_TEXT_ENCODER", "1") == "1",
    "xformers": os.environ.get("XFORMERS", "0") == "1",  # memory-efficient attention
    "mixed_precision": os.environ.get("PRECISION", "fp16"),
    "learning_rate": 5e-6,
    "max_train_steps": 3,
    "max_grad_norm": 1.0,
}


class DreamBoothDataset(Dataset):
    def __init__(self, size, n=100):
        self.size, self.n = size, n

    def __len__(self):
        return self.n

    def image(self):
        return torch.rand(3, self.size, self.size) * 2 - 1

    def __getitem__(self, i):
        return {"instance_images": self.image(), "class_images": self.image(),
                "instance_prompt_ids": torch.randint(0, 49408, (77,)), "class_prompt_ids": torch.randint(0, 49408, (77,))}


def collate_fn(examples):
    kinds = ["instance"] + (["class"] if args["with_prior_preservation"] else [])
    return {"pixel_values": torch.stack([e[k + "_images"] for k in kinds for e in examples]),
            "input_ids": torch.stack([e[k + "_prompt_ids"] for k in kinds for e in examples])}


def load_models():
    with torch.device("cuda"):
        text_encoder = CLIPTextModel(CLIPTextConfig(vocab_size=49408, hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
                                                    num_attention_heads=12, hidden_act="quick_gelu"))
        vae = AutoencoderKL(down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
                            block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4)
        unet = UNet2DConditionModel(sample_size=64, cross_attention_dim=768, attention_head_dim=8)
    return text_encoder, vae, unet


def training_function():
    accelerator = Accelerator(gradient_accumulation_steps=1, mixed_precision=args["mixed_precision"])
    set_seed(0)
    text_encoder, vae, unet = load_models()
    vae.requires_grad_(False)
    if not args["xformers"]:
        unet.set_attn_processor(AttnProcessor())
    if args["gradient_checkpointing"]:
        unet.enable_gradient_checkpointing()
        if args["train_text_encoder"]:
            text_encoder.gradient_checkpointing_enable()
    text_encoder.requires_grad_(args["train_text_encoder"])
    knobs.apply(unet)

    params = itertools.chain(unet.parameters(), text_encoder.parameters()) if args["train_text_encoder"] else unet.parameters()
    optimizer = torch.optim.AdamW(list(params), lr=args["learning_rate"], betas=(0.9, 0.999), weight_decay=1e-2)
    noise_scheduler = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", num_train_timesteps=1000)
    loader = DataLoader(DreamBoothDataset(args["resolution"]), batch_size=args["train_batch_size"], shuffle=True, collate_fn=collate_fn)
    lr_scheduler = get_scheduler("constant", optimizer=optimizer)
    unet, text_encoder, optimizer, loader, lr_scheduler = accelerator.prepare(unet, text_encoder, optimizer, loader, lr_scheduler)
    vae.to(accelerator.device)

    unet.train()
    if args["train_text_encoder"]:
        text_encoder.train()
    step = 0
    for batch in loader:
        with accelerator.accumulate(unet):
            with torch.no_grad():
                latents = vae.encode(batch["pixel_values"]).latent_dist.sample() * 0.18215
            noise = torch.randn_like(latents)
            timesteps = torch.randint(0, 1000, (latents.shape[0],), device=latents.device)
            noisy = noise_scheduler.add_noise(latents, noise, timesteps)
            hidden = text_encoder(batch["input_ids"])[0]
            pred = unet(noisy, timesteps, hidden).sample
            if args["with_prior_preservation"]:
                pred, pred_prior = pred.chunk(2)
                noise, noise_prior = noise.chunk(2)
                loss = F.mse_loss(pred.float(), noise.float(), reduction="none").mean([1, 2, 3]).mean()
                loss = loss + args["prior_loss_weight"] * F.mse_loss(pred_prior.float(), noise_prior.float())
            else:
                loss = F.mse_loss(pred.float(), noise.float())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(optimizer.param_groups[0]["params"], args["max_grad_norm"])
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        step += 1
        accelerator.print(f"step {step} loss {loss.detach().item():.4f}")
        if step >= args["max_train_steps"]:
            break


training_function()
