# CARD: 12GiB
# KNOBS: NO_GRAD CHUNKS=1 DTYPE=bf16 CPU_OUTPUTS
# EXPERT: model.eval() does not switch autograd off, all features of 23 dense blocks at 1080p are kept; torch.no_grad()
# NO_GRAD=1: inference under torch.no_grad(); CHUNKS=<int>: horizontal strips (with overlap); DTYPE=bf16|fp16; CPU_OUTPUTS=1: frames kept on the CPU
import contextlib
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

NO_GRAD = os.environ.get("NO_GRAD", "0") not in ("", "0")
CPU_OUTPUTS = os.environ.get("CPU_OUTPUTS", "0") not in ("", "0")
STRIPS = int(os.environ.get("CHUNKS", 1))
DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(os.environ.get("DTYPE", ""), torch.float32)


class ResidualDenseBlock(nn.Module):
    def __init__(self, nf=64, gc=32):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(nf + i * gc, gc if i < 4 else nf, 3, 1, 1) for i in range(5))

    def forward(self, x):
        feats = x
        for conv in self.convs[:-1]:
            feats = torch.cat((feats, F.leaky_relu(conv(feats), 0.2, inplace=True)), 1)
        return self.convs[-1](feats) * 0.2 + x


class RRDB(nn.Module):
    def __init__(self, nf=64):
        super().__init__()
        self.rdbs = nn.Sequential(*[ResidualDenseBlock(nf) for _ in range(3)])

    def forward(self, x):
        return self.rdbs(x) * 0.2 + x


class RRDBNet(nn.Module):
    def __init__(self, nb=23, nf=64):
        super().__init__()
        self.conv_first = nn.Conv2d(3, nf, 3, 1, 1)
        self.body = nn.Sequential(*[RRDB(nf) for _ in range(nb)])
        self.conv_body = nn.Conv2d(nf, nf, 3, 1, 1)
        self.conv_up = nn.Conv2d(nf, nf, 3, 1, 1)
        self.conv_last = nn.Conv2d(nf, 3, 3, 1, 1)

    def forward(self, x):
        feat = self.conv_first(x)
        feat = feat + self.conv_body(self.body(feat))
        feat = F.leaky_relu(self.conv_up(F.interpolate(feat, scale_factor=2, mode="nearest")), 0.2)
        return self.conv_last(feat)


class Upscaler:
    def __init__(self, scale=2, overlap=8):
        self.scale, self.overlap = scale, overlap
        self.model = RRDBNet().to("cuda", DTYPE).eval()

    def strips(self, height):
        step = -(-height // STRIPS)
        for top in range(0, height, step):
            bottom = min(top + step, height)
            yield top, bottom, max(top - self.overlap, 0), min(bottom + self.overlap, height)

    def enhance(self, frame):
        frame = frame.to("cuda", DTYPE)
        parts = []
        for top, bottom, lo, hi in self.strips(frame.size(2)):
            out = self.model(frame[:, :, lo:hi])
            out = out[:, :, (top - lo) * self.scale:(bottom - lo) * self.scale]
            parts.append(out.detach().cpu() if CPU_OUTPUTS else out)
        return torch.cat(parts, 2).clamp(0, 1)


def main(n_frames=2):
    torch.manual_seed(0)
    upscaler = Upscaler()
    results = []
    with torch.no_grad() if NO_GRAD else contextlib.nullcontext():
        for i in range(n_frames):
            frame = torch.rand(1, 3, 1080, 1920)
            results.append(upscaler.enhance(frame))
            print(f"frame {i}: {tuple(results[-1].shape)}")
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
