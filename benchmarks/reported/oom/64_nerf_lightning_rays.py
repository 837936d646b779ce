# CARD: 8GiB
# KNOBS: RAYS=4096 CHUNK=32768 AUTOCAST CHECKPOINT=NeRF DATA_ON_CPU
# EXPERT: activations of the MLP for 4096 x (64 + 192) sample points, all kept until backward; enough: RAYS=2048, AUTOCAST, CHECKPOINT=NeRF (as the queries are in chunks); not enough: CHUNK=1024 (the chunks' graphs are all kept), DATA_ON_CPU (0.6 GiB of rays), CHECKPOINT with CHUNK=1048576 (the fine net is one chunk, recomputed at once)
# Source: yenchenlin/nerf-pytorch 23 (N_rand 4096, 64 + 128 samples, 16 GB V100: OOM, and netchunk 1024 / chunk 512 do not help; answer: all rays are copied to the GPU) and kwea123/nerf_pl 25 (why a loop over chunks); Lightning
import os

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

import knobs

RAYS = int(os.environ.get("RAYS", 4096))
CHUNK = int(os.environ.get("CHUNK", 1024 * 32))
N_SAMPLES, N_IMPORTANCE = 64, 128
IMAGES, H, W = 20, 756, 1008
STEPS = 4


class Embedding(nn.Module):
    def __init__(self, n_freqs):
        super().__init__()
        self.freqs = [2.0**i for i in range(n_freqs)]

    def forward(self, x):
        out = [x]
        for f in self.freqs:
            out += [torch.sin(f * x), torch.cos(f * x)]
        return torch.cat(out, -1)


class NeRF(nn.Module):
    def __init__(self, depth=8, width=256, xyz=63, dirs=27, skips=(4,)):
        super().__init__()
        self.skips = skips
        self.xyz = nn.ModuleList(nn.Linear(xyz if i == 0 else width + xyz if i in skips else width, width)
                                 for i in range(depth))
        self.final = nn.Linear(width, width)
        self.dir = nn.Linear(width + dirs, width // 2)
        self.sigma = nn.Linear(width, 1)
        self.rgb = nn.Linear(width // 2, 3)

    def forward(self, xyz, dirs):
        h = xyz
        for i, layer in enumerate(self.xyz):
            if i in self.skips:
                h = torch.cat([xyz, h], -1)
            h = F.relu(layer(h))
        sigma = self.sigma(h)
        h = F.relu(self.dir(torch.cat([self.final(h), dirs], -1)))
        return torch.cat([torch.sigmoid(self.rgb(h)), sigma], -1)


def sample_pdf(bins, weights, n):
    pdf = (weights + 1e-5) / (weights + 1e-5).sum(-1, keepdim=True)
    cdf = torch.cat([torch.zeros_like(pdf[:, :1]), pdf.cumsum(-1)], -1)
    u = torch.rand(cdf.shape[0], n, device=cdf.device)
    idx = torch.searchsorted(cdf.contiguous(), u, right=True)
    below, above = (idx - 1).clamp(min=0), idx.clamp(max=cdf.shape[-1] - 1)
    c0, c1 = cdf.gather(1, below), cdf.gather(1, above)
    b0, b1 = bins.gather(1, below.clamp(max=bins.shape[1] - 1)), bins.gather(1, above.clamp(max=bins.shape[1] - 1))
    return b0 + (u - c0) / (c1 - c0).clamp(min=1e-5) * (b1 - b0)


class RayDataset(IterableDataset):
    """All rays of the scene (origin, direction, near, far, colour) in one tensor on the GPU."""

    def __init__(self):
        self.rays = knobs.data(torch.zeros(IMAGES * H * W, 11))

    def __iter__(self):
        for i in range(STEPS):
            pick = torch.randint(len(self.rays), (RAYS,), device=self.rays.device)
            yield self.rays[pick].cuda()


class NeRFSystem(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embed_xyz, self.embed_dir = Embedding(10), Embedding(4)
        self.coarse, self.fine = knobs.apply(NeRF()), knobs.apply(NeRF())

    def query(self, net, o, d, z):
        n, s = z.shape
        xyz = (o[:, None] + d[:, None] * z[..., None]).reshape(-1, 3)
        dirs = self.embed_dir(d).repeat_interleave(s, 0)
        out = []
        for i in range(0, xyz.shape[0], CHUNK):  # network queries in chunks to fit into the memory
            out.append(net(self.embed_xyz(xyz[i:i + CHUNK]), dirs[i:i + CHUNK]))
        raw = torch.cat(out).view(n, s, 4).float()
        deltas = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e10)], -1)
        alpha = 1 - torch.exp(-deltas * F.relu(raw[..., 3]))
        trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        weights = alpha * trans
        return (weights[..., None] * raw[..., :3]).sum(1), weights

    def forward(self, rays):
        o, d, near, far = rays[:, :3], rays[:, 3:6], rays[:, 6:7], rays[:, 7:8]
        z = near + (far - near) * torch.linspace(0, 1, N_SAMPLES, device=rays.device)
        rgb_coarse, weights = self.query(self.coarse, o, d, z)
        mid = 0.5 * (z[:, 1:] + z[:, :-1])
        z_fine = sample_pdf(mid, weights[:, 1:-1].detach(), N_IMPORTANCE)
        z = torch.cat([z, z_fine], -1).sort(-1).values
        return rgb_coarse, self.query(self.fine, o, d, z)[0]

    def training_step(self, batch, batch_idx):
        with knobs.autocast():
            coarse, fine = self(batch[:, :8])
            loss = F.mse_loss(coarse, batch[:, 8:]) + F.mse_loss(fine, batch[:, 8:])
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-4, eps=1e-8)


if __name__ == "__main__":
    L.seed_everything(0)
    system = NeRFSystem()
    trainer = L.Trainer(max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, num_sanity_val_steps=0, benchmark=False)
    trainer.fit(system, DataLoader(RayDataset(), batch_size=None))
