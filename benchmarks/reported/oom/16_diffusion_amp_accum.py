# CARD: 12GiB
# KNOBS: BATCH=32 CHECKPOINT=ResnetBlock2D,Attention CHECKPOINT_PATHS=down_blocks.*,up_blocks.* OPT FUSED
# EXPERT: UNet activations at 128x128 with micro-batch 32 though AMP is on; smaller micro-batch with more accumulation, gradient checkpointing
import argparse
import copy
import os

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel
from torch.utils.data import DataLoader, Dataset

import knobs


class Faces(Dataset):
    def __init__(self, n, resolution):
        self.n, self.resolution = n, resolution

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.rand(3, self.resolution, self.resolution) * 2 - 1


class EMA:
    def __init__(self, model, decay=0.9999):
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.model.parameters(), model.parameters()):
            e.lerp_(p, 1 - self.decay)


class DiffusionTrainer:
    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda")
        self.model = UNet2DModel(
            sample_size=args.resolution,
            in_channels=3,
            out_channels=3,
            layers_per_block=2,
            block_out_channels=(128, 128, 256, 512),
            down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        ).to(self.device)
        self.ema = EMA(self.model)
        knobs.apply(self.model)
        self.noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
        self.alphas = self.noise_scheduler.alphas_cumprod.to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.scaler = torch.amp.GradScaler("cuda")

    def add_noise(self, x, noise, t):
        a = self.alphas[t].view(-1, 1, 1, 1)
        return a.sqrt() * x + (1 - a).sqrt() * noise

    def loss(self, clean):
        noise = torch.randn_like(clean)
        t = torch.randint(0, 1000, (clean.shape[0],), device=self.device)
        noisy = self.add_noise(clean, noise, t)
        with torch.autocast("cuda", dtype=torch.float16):
            pred = self.model(noisy, t).sample
            return F.mse_loss(pred.float(), noise)

    def fit(self, loader):
        a = self.args
        self.model.train()
        for i, clean in enumerate(loader):
            loss = self.loss(clean.to(self.device)) / a.accum
            self.scaler.scale(loss).backward()
            if (i + 1) % a.accum == 0:
                self.scaler.unscale_(self.optimizer)
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
                self.ema.update(self.model)
                print(f"step {(i + 1) // a.accum} loss {loss.item() * a.accum:.5f}")
            if i + 1 == a.accum * a.steps:
                break


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--resolution", type=int, default=128)
    p.add_argument("--train_batch_size", type=int, default=int(os.environ.get("BATCH", 32)))
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--lr", type=float, default=1e-4)
    args = p.parse_args()
    loader = DataLoader(Faces(6 * 32, args.resolution), batch_size=args.train_batch_size, drop_last=True)
    DiffusionTrainer(args).fit(loader)
    print("PEAK", torch.cuda.max_memory_allocated())
