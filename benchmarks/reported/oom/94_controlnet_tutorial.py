# CARD: 23.64GiB
# KNOBS: BATCH=4 ATTENTION=plain GRAD_CKPT AUTOCAST OPT FUSED
# EXPERT: the unfused attention of the U-Net and the ControlNet at 64x64 latents keeps batch x 8 heads x 4096 x 4096 floats (2 GiB) a layer for backward, with fp32 throughout; save_memory (memory-efficient attention), gradient checkpointing, a smaller batch with gradient accumulation, fp16
# after lllyasviel/ControlNet issue 301 (https://github.com/lllyasviel/ControlNet/issues/301), rebuilt with diffusers, without gradient checkpointing
import os

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, ControlNetModel, DDPMScheduler, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0
from torch.utils.data import DataLoader, Dataset
from transformers import CLIPTextConfig, CLIPTextModel

import knobs

# Configs
batch_size = int(os.environ.get("BATCH", 4))
logger_freq = 300
learning_rate = 1e-5
sd_locked = True
only_mid_control = False
save_memory = os.environ.get("ATTENTION", "plain") == "fused"
max_steps = 2


class MyDataset(Dataset):
    """fill50k: circles"""

    def __len__(self):
        return 64

    def __getitem__(self, idx):
        source = torch.rand(3, 512, 512)  # [0, 1]
        target = torch.rand(3, 512, 512) * 2 - 1  # [-1, 1]
        prompt = torch.randint(0, 49408, (77,))
        return dict(jpg=target, txt=prompt, hint=source)


def create_model():
    with torch.device("cuda"):
        unet = UNet2DConditionModel(
            sample_size=64, in_channels=4, out_channels=4, layers_per_block=2, cross_attention_dim=768,
            attention_head_dim=8, block_out_channels=(320, 640, 1280, 1280),
            down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"))
        controlnet = ControlNetModel.from_unet(unet)
        vae = AutoencoderKL(
            block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4, sample_size=512,
            down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4)
        text_encoder = CLIPTextModel(CLIPTextConfig(
            vocab_size=49408, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12))
    return unet, controlnet, vae, text_encoder


def main():
    unet, controlnet, vae, text_encoder = create_model()
    for m in (unet, controlnet, vae, text_encoder):
        m.cuda()
    vae.requires_grad_(False).eval()
    text_encoder.requires_grad_(False).eval()
    unet.requires_grad_(not sd_locked)
    proc = AttnProcessor2_0 if save_memory else AttnProcessor
    unet.set_attn_processor(proc())
    controlnet.set_attn_processor(proc())
    vae.set_attn_processor(proc())
    if os.environ.get("GRAD_CKPT") == "1":  # use_checkpoint in cldm_v15.yaml
        unet.enable_gradient_checkpointing()
        controlnet.enable_gradient_checkpointing()
    controlnet.train()
    unet.train()
    params = list(controlnet.parameters())
    opt = torch.optim.AdamW(params, lr=learning_rate)
    sched = DDPMScheduler(num_train_timesteps=1000, beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012)
    loader = DataLoader(MyDataset(), batch_size=batch_size, shuffle=True, num_workers=0)
    print("weights: MiB", torch.cuda.memory_allocated() // 2 ** 20)

    for step, batch in enumerate(loader):
        x, hint, ids = batch["jpg"].cuda(), batch["hint"].cuda(), batch["txt"].cuda()
        with knobs.autocast():
            with torch.no_grad():
                z = vae.encode(x).latent_dist.sample() * vae.config.scaling_factor
                c = text_encoder(ids)[0]
            noise = torch.randn_like(z)
            t = torch.randint(0, 1000, (z.shape[0],), device=z.device)
            noisy = sched.add_noise(z, noise, t)
            down, mid = controlnet(noisy, t, encoder_hidden_states=c, controlnet_cond=hint, return_dict=False)
            if only_mid_control:
                down = [torch.zeros_like(d) for d in down]
            eps = unet(noisy, t, encoder_hidden_states=c, down_block_additional_residuals=down,
                       mid_block_additional_residual=mid).sample
            loss = F.mse_loss(eps.float(), noise.float())
        loss.backward()
        opt.step()
        opt.zero_grad()
        print(f"step {step} train/loss_simple {loss.item():.4f} peak GiB {torch.cuda.max_memory_allocated() / 2 ** 30:.2f}")
        if step + 1 == max_steps:
            break
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
