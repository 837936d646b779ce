# CARD: 16GiB
# KNOBS: BATCH=8 AUTOCAST CHECKPOINT=ResnetBlock2D OPT
# EXPERT: activations of the U-Net at 256x256 (128 channels at full resolution); microbatch of 4 or fewer, checkpointing, half precision
# after openai/improved-diffusion issue 3
import os

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.training_utils import EMAModel
from torch.utils.data import DataLoader, Dataset

import knobs

config = dict(
    image_size=256,
    batch_size=int(os.environ.get("BATCH", 8)),
    lr=1e-4,
    ema_rate=0.9999,
    diffusion_steps=1000,
)


class ImageFolder(Dataset):
    def __init__(self, n=64):
        self.img = torch.rand(3, config["image_size"] + 16, config["image_size"] + 16) * 2 - 1
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        s = config["image_size"]
        return self.img[:, i % 16:i % 16 + s, (3 * i) % 16:(3 * i) % 16 + s]


def create_model():
    # --num_channels 128 --num_res_blocks 2 --attention_resolutions 16
    return UNet2DModel(
        sample_size=config["image_size"], in_channels=3, out_channels=3,
        layers_per_block=2,
        block_out_channels=(128, 128, 256, 256, 512, 512),
        down_block_types=("DownBlock2D", "DownBlock2D", "DownBlock2D", "DownBlock2D",
                          "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D",
                        "UpBlock2D", "UpBlock2D"),
        attention_head_dim=512,
    )


def main():
    device = torch.device("cuda")
    model = create_model().to(device)
    knobs.apply(model)
    ema = EMAModel(model.parameters(), decay=config["ema_rate"])
    ema.to(device)
    scheduler = DDPMScheduler(num_train_timesteps=config["diffusion_steps"])
    opt = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=0.0)
    loader = DataLoader(ImageFolder(), batch_size=config["batch_size"], shuffle=True, drop_last=True)

    for step, batch in enumerate(loader):
        x0 = batch.to(device=device, dtype=knobs.dtype())
        noise = torch.randn_like(x0)
        t = torch.randint(0, config["diffusion_steps"], (x0.shape[0],), device=device)
        xt = scheduler.add_noise(x0, noise, t)
        with knobs.autocast():
            eps = model(xt, t).sample
        loss = F.mse_loss(eps.float(), noise.float())
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.step(model.parameters())
        print(f"step {step}: mse {loss.item():.5f}")
        if step == 2:
            break
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
