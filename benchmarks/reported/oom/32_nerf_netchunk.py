# CARD: 16GiB
# KNOBS: BATCH=8192 N_IMPORTANCE=128 NETCHUNK=65536 CHUNK=32768 AUTOCAST CHECKPOINT=NeRF OPT FUSED
# EXPERT: each of 8192 rays has 64 + 192 points through 8x256 layers whose activations stay for the backward; fewer rays per batch, fewer samples, AMP, checkpoint the MLP; a smaller netchunk/chunk does nothing in training because the graph of all chunks is kept
# Source: NeRF out of memory and the advice to lower chunk and netchunk (DetRF 2, dense_depth_priors_nerf 15, neuralsim 15, semantic_nerf 9)
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import knobs

device = "cuda"
N_rand = int(os.environ.get("BATCH", 8192))
N_samples = 64
N_importance = int(os.environ.get("N_IMPORTANCE", 128))
netchunk = int(os.environ.get("NETCHUNK", 65536))
chunk = int(os.environ.get("CHUNK", 32768))
H = W = 200  # testskip'ed half-res lego
near, far = 2.0, 6.0


class NeRF(nn.Module):
    def __init__(self, D=8, W=256, in_xyz=63, in_dir=27, skips=(4,)):
        super().__init__()
        self.skips = skips
        self.pts_linears = nn.ModuleList(
            [nn.Linear(in_xyz, W)] + [nn.Linear(W + in_xyz if i in skips else W, W) for i in range(D - 1)])
        self.feature_linear, self.alpha_linear = nn.Linear(W, W), nn.Linear(W, 1)
        self.views_linear, self.rgb_linear = nn.Linear(W + in_dir, W // 2), nn.Linear(W // 2, 3)

    def forward(self, pts, views):
        h = pts
        for i, layer in enumerate(self.pts_linears):
            h = F.relu(layer(h))
            if i in self.skips:
                h = torch.cat([pts, h], -1)
        alpha = self.alpha_linear(h)
        h = torch.cat([self.feature_linear(h), views], -1)
        return torch.cat([self.rgb_linear(F.relu(self.views_linear(h))), alpha], -1)


def embed(x, n_freqs):
    out = [x]
    for i in range(n_freqs):
        out += [torch.sin(x * 2.0 ** i), torch.cos(x * 2.0 ** i)]
    return torch.cat(out, -1)


def run_network(pts, viewdirs, net):
    flat = pts.reshape(-1, 3)
    dirs = viewdirs[:, None].expand(pts.shape).reshape(-1, 3)
    e, d = embed(flat, 10), embed(dirs, 4)
    outs = [net(e[i:i + netchunk], d[i:i + netchunk]) for i in range(0, len(e), netchunk)]
    return torch.cat(outs, 0).reshape(*pts.shape[:-1], 4)


def raw2outputs(raw, z, rays_d):
    dists = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e10)], -1)
    dists = dists * rays_d.norm(dim=-1, keepdim=True)
    rgb = torch.sigmoid(raw[..., :3])
    alpha = 1 - torch.exp(-F.relu(raw[..., 3]) * dists)
    trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
    weights = alpha * trans
    return (weights[..., None] * rgb).sum(-2), weights


def sample_pdf(bins, weights, n):
    cdf = torch.cumsum(weights + 1e-5, -1)
    cdf = torch.cat([torch.zeros_like(cdf[:, :1]), cdf / cdf[:, -1:]], -1)
    u = torch.rand(len(cdf), n, device=cdf.device)
    inds = torch.searchsorted(cdf.contiguous(), u, right=True)
    below = (inds - 1).clamp(min=0)
    above = inds.clamp(max=cdf.shape[-1] - 1)
    b0, b1 = bins.gather(1, below), bins.gather(1, above)
    return b0 + u * (b1 - b0)


def render_rays(rays_o, rays_d, coarse, fine):
    z = torch.linspace(near, far, N_samples, device=device).expand(len(rays_o), -1)
    z = z + torch.rand_like(z) * (far - near) / N_samples
    views = F.normalize(rays_d, dim=-1)
    raw = run_network(rays_o[:, None] + rays_d[:, None] * z[..., None], views, coarse)
    rgb0, weights = raw2outputs(raw, z, rays_d)
    if N_importance == 0:
        return rgb0, rgb0
    mid = 0.5 * (z[:, 1:] + z[:, :-1])
    z_new = sample_pdf(mid, weights[:, 1:-1].detach(), N_importance)
    z_all, _ = torch.sort(torch.cat([z, z_new], -1), -1)
    raw = run_network(rays_o[:, None] + rays_d[:, None] * z_all[..., None], views, fine)
    rgb, _ = raw2outputs(raw, z_all, rays_d)
    return rgb, rgb0


def render(rays_o, rays_d, coarse, fine):
    parts = [render_rays(rays_o[i:i + chunk], rays_d[i:i + chunk], coarse, fine) for i in range(0, len(rays_o), chunk)]
    return tuple(torch.cat(p) for p in zip(*parts))


coarse, fine = knobs.apply(NeRF().to(device)), knobs.apply(NeRF().to(device))
optimizer = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], lr=5e-4, betas=(0.9, 0.999))
rays = torch.rand(100_000, 3, 3)  # origin, direction, colour

for i in range(3):
    pick = torch.randint(len(rays), (N_rand,))
    rays_o, rays_d, target = rays[pick].to(device).unbind(1)
    with knobs.autocast():
        rgb, rgb0 = render(rays_o, rays_d, coarse, fine)
        loss = ((rgb - target) ** 2).mean() + ((rgb0 - target) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"[TRAIN] Iter: {i} Loss: {loss.item()}")

with torch.no_grad():
    o, d, c = rays[: H * W // 4].to(device).unbind(1)
    frame, _ = render(o, d, coarse, fine)
    print("test mse", ((frame - c) ** 2).mean().item())
print("PEAK", torch.cuda.max_memory_allocated())
