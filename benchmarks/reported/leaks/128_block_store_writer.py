# kind: weakref.finalize is given the store's own bound method, so no store is ever collected; from DiamondLightSource/httomo PR 265
import weakref

import torch
from torch import nn


class BlockStore:
    def __init__(self, shape):
        self.data = torch.empty(shape, device="cuda")
        self.filled = 0
        self.closed = False
        weakref.finalize(self, self.finalize)  # LEAK

    def write_block(self, start, block):
        self.data[start:start + block.shape[0]] = block
        self.filled += block.shape[0]

    def read_block(self, start, size):
        return self.data[start:start + size]

    def finalize(self):
        self.closed = True


class Method:
    def __init__(self, name, fn):
        self.name, self.fn = name, fn

    def __call__(self, block):
        return self.fn(block)


def dark_flat(block):
    return (block - 0.02).clamp_min(1e-4) / 0.98


def minus_log(block):
    return -torch.log(block)


class RingFilter(nn.Module):
    def __init__(self, angles):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(angles, 16, 5, padding=2), nn.Tanh(), nn.Conv1d(16, 1, 5, padding=2))

    def forward(self, block):
        return block - 0.1 * self.net(block)


def make_filter(width):
    freqs = torch.fft.rfftfreq(width, device="cuda")
    return lambda block: torch.fft.irfft(torch.fft.rfft(block, dim=-1) * freqs, n=width, dim=-1)


class PipelineRunner:
    def __init__(self, methods, block_size):
        self.methods = methods
        self.block_size = block_size

    @torch.inference_mode()
    def run(self, projections):
        source = BlockStore(projections.shape)
        source.write_block(0, projections)
        for method in self.methods:
            sink = BlockStore(projections.shape)
            for start in range(0, projections.shape[0], self.block_size):
                block = source.read_block(start, self.block_size)
                sink.write_block(start, method(block))
            source = sink
        return source.data.std().item()


torch.manual_seed(0)
runner = PipelineRunner(
    [Method("dark_flat", dark_flat), Method("log", minus_log), Method("ring", RingFilter(4).cuda().eval()), Method("fbp", make_filter(128))],
    block_size=16,
)
stds = []
for scan in range(80):
    projections = 0.3 + 0.5 * torch.rand(32, 4, 128, device="cuda")
    stds.append(runner.run(projections))
print(f"{len(stds)} scans, mean std {sum(stds) / len(stds):.4f}")
