# CARD: 24GiB
# KNOBS: BATCH=4 HYPOTHESES=20 TIMESTEPS=10 CLIP_CHUNK SDPA AUTOCAST CHECKPOINT=Block OPT FUSED
# EXPERT: training (one noisy pose per clip) fits; evaluation sends a whole video (up to 26 clips of 243 frames) times H=20 hypotheses through the mixed spatio-temporal transformer, whose temporal attention is 26 x 20 x 17 x 8 x 243 x 243 floats; fewer hypotheses (-num_proposals), the clips in chunks, fused attention; K (sampling_timesteps) only takes time
# after paTRICK-swk/D3DP issue 9
import argparse
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

FRAMES, JOINTS = 243, 17
SDPA = os.environ.get("SDPA", "0") == "1"


class Attention(nn.Module):
    def __init__(self, dim, num_heads=8):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, dim * 3, bias=True), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4)
        if SDPA:
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            attn = (q @ k.transpose(-2, -1)) * self.scale
            attn = attn.softmax(dim=-1)
            x = attn @ v
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


class Block(nn.Module):
    def __init__(self, dim, mlp_ratio=2.0):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(dim), Attention(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, int(dim * mlp_ratio)), nn.GELU(), nn.Linear(int(dim * mlp_ratio), dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SinusoidalPositionEmbeddings(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, time):
        half = self.dim // 2
        freq = torch.exp(torch.arange(half, device=time.device) * -(math.log(10000) / (half - 1)))
        e = time[:, None].float() * freq[None]
        return torch.cat((e.sin(), e.cos()), dim=-1)


class MixSTE2(nn.Module):
    """(b, h, f, n, 5): 2D pose and noisy 3D pose -> 3D pose"""

    def __init__(self, dim=512, depth=8):
        super().__init__()
        self.embed = nn.Linear(5, dim)
        self.spatial_pos = nn.Parameter(torch.zeros(1, JOINTS, dim))
        self.temporal_pos = nn.Parameter(torch.zeros(1, FRAMES, dim))
        self.time_mlp = nn.Sequential(SinusoidalPositionEmbeddings(dim), nn.Linear(dim, dim * 2), nn.GELU(),
                                      nn.Linear(dim * 2, dim))
        self.STEblocks = nn.ModuleList([Block(dim) for _ in range(depth)])
        self.TTEblocks = nn.ModuleList([Block(dim) for _ in range(depth)])
        self.Spatial_norm, self.Temporal_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 3))

    def forward(self, x_2d, x_3d, t):
        b, h, f, n, _ = x_3d.shape
        x_2d = x_2d[:, None].expand(-1, h, -1, -1, -1)
        x = self.embed(torch.cat((x_2d, x_3d), dim=-1))
        x = x + self.time_mlp(t)[:, None, None, None, :]
        x = x.reshape(b * h * f, n, -1) + self.spatial_pos
        for i, (ste, tte) in enumerate(zip(self.STEblocks, self.TTEblocks)):
            x = self.Spatial_norm(ste(x))
            x = x.reshape(b * h, f, n, -1).transpose(1, 2).reshape(b * h * n, f, -1)
            if i == 0:
                x = x + self.temporal_pos
            x = self.Temporal_norm(tte(x))
            x = x.reshape(b * h, n, f, -1).transpose(1, 2).reshape(b * h * f, n, -1)
        return self.head(x).view(b, h, f, n, 3)


class D3DP(nn.Module):
    def __init__(self, args, timesteps=1000):
        super().__init__()
        self.args, self.num_timesteps = args, timesteps
        s = torch.linspace(0, timesteps, timesteps + 1, dtype=torch.float64)
        ac = torch.cos(((s / timesteps) + 0.008) / 1.008 * math.pi * 0.5) ** 2
        self.register_buffer("alphas_cumprod", (ac / ac[0])[1:].clamp(1e-5, 0.99999).float())
        self.pose_estimator = MixSTE2()

    def forward(self, x_2d, x_3d):
        t = torch.randint(0, self.num_timesteps, (len(x_3d),), device=x_3d.device)
        a = self.alphas_cumprod[t][:, None, None, None]
        noisy = a.sqrt() * x_3d + (1 - a).sqrt() * torch.randn_like(x_3d)
        return self.pose_estimator(x_2d, noisy[:, None], t)[:, 0]

    @torch.no_grad()
    def ddim_sample(self, x_2d):
        b = x_2d.shape[0]
        img = torch.randn(b, self.args.num_proposals, FRAMES, JOINTS, 3, device=x_2d.device)
        times = torch.linspace(self.num_timesteps - 1, 0, self.args.sampling_timesteps + 1).long().tolist()
        preds = []
        for time, time_next in zip(times[:-1], times[1:]):
            t = torch.full((b,), time, device=x_2d.device)
            x_start = self.pose_estimator(x_2d, img, t)
            flipped = self.pose_estimator(x_2d * torch.tensor([-1.0, 1.0], device=x_2d.device), img, t)
            x_start = ((x_start + flipped) / 2).clamp(-1.1, 1.1)
            preds.append(x_start)
            a, a_next = self.alphas_cumprod[time], self.alphas_cumprod[time_next]
            noise = (img - a.sqrt() * x_start) / (1 - a).sqrt()
            img = x_start * a_next.sqrt() + (1 - a_next).sqrt() * noise
        return torch.stack(preds, dim=1)  # (b, k, h, f, n, 3)


def eval_data_prepare(frames):
    """a video as clips of 243 frames"""
    n = -(-frames // FRAMES)
    return torch.rand(n, FRAMES, JOINTS, 2), torch.rand(n, FRAMES, JOINTS, 3)


def mpjpe_j_best(predicted, target):
    error = torch.norm(predicted - target[:, None, None], dim=-1)
    return error.min(dim=2).values.mean()


def evaluate(model, args):
    model.eval()
    total = count = 0
    for frames in (1383, 2356, 6188):
        x_2d, x_3d = eval_data_prepare(frames)
        chunk = int(os.environ.get("CLIP_CHUNK", 0)) or len(x_2d)
        for a, b in zip(x_2d.split(chunk), x_3d.split(chunk)):
            a, b = a.cuda(), b.cuda()
            with knobs.autocast():
                pred = model.ddim_sample(a)
            total += mpjpe_j_best(pred.float(), b).item() * len(a)
            count += len(a)
        print(f"video of {frames} frames: {len(x_2d)} clips, P-Best {1000 * total / count:.1f} mm")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", "--batch-size", type=int, default=int(os.environ.get("BATCH", 4)), help="clips of 243 frames")
    parser.add_argument("-num_proposals", type=int, default=int(os.environ.get("HYPOTHESES", 20)))
    parser.add_argument("-sampling_timesteps", type=int, default=int(os.environ.get("TIMESTEPS", 10)))
    args = parser.parse_args()
    model = D3DP(args).cuda()
    knobs.apply(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-5, weight_decay=0.1)
    model.train()
    for i in range(3):
        x_2d = torch.rand(args.batch_size, FRAMES, JOINTS, 2).cuda()
        x_3d = torch.rand(args.batch_size, FRAMES, JOINTS, 3).cuda()
        optimizer.zero_grad()
        with knobs.autocast():
            pred = model(x_2d, x_3d)
        loss = torch.norm(pred.float() - x_3d, dim=-1).mean()
        loss.backward()
        optimizer.step()
        print(f"step {i} loss {loss.item():.4f}")
    print("training: MiB", torch.cuda.max_memory_allocated() // 2 ** 20)
    evaluate(model, args)
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
