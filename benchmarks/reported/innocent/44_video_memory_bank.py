# kind: memory attention over at most 12 past frames, the bank belongs to a clip and clips get longer; from SAM 2 style video segmentation questions about memory per frame
from collections import deque

import torch
import torch.nn as nn


class MemoryAttention(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(3, 32, 4, 4), nn.GELU(), nn.Conv2d(32, d, 2, 2))
        self.mem = nn.Conv2d(d + 1, d, 1)
        self.attn = nn.MultiheadAttention(d, 4, batch_first=True)
        self.mask = nn.ConvTranspose2d(d, 1, 8, 8)

    def forward(self, frame, bank):
        f = self.enc(frame)
        q = f.flatten(2).transpose(1, 2)
        if bank:
            kv = torch.cat([m.flatten(2).transpose(1, 2) for m in bank], 1)
            q = q + self.attn(q, kv, kv, need_weights=False)[0]
        g = q.transpose(1, 2).view_as(f)
        logits = self.mask(g)
        small = nn.functional.interpolate(logits, size=f.shape[-2:])
        return logits, self.mem(torch.cat([f, small.sigmoid()], 1))


class ClipState:
    def __init__(self, num_maskmem=12):
        self.bank = deque(maxlen=num_maskmem)
        self.areas = []


@torch.inference_mode()
def segment(model, frames):
    state = ClipState()
    for frame in frames:
        logits, mem = model(frame.unsqueeze(0).cuda(), list(state.bank))
        state.bank.append(mem)
        state.areas.append((logits > 0).float().mean().item())
    return state


def clip(n, seed):
    g = torch.Generator().manual_seed(seed)
    start = torch.rand(3, 192, 256, generator=g)
    return [start.roll(i, 2) for i in range(n)]


if __name__ == "__main__":
    torch.manual_seed(0)
    model = MemoryAttention().cuda().eval()
    for k, length in enumerate([4, 6, 10, 14, 18, 22, 26, 26, 26]):
        state = segment(model, clip(length, k))
        print("clip", k, "frames", length, "object covers %.2f" % (sum(state.areas) / length))
