# kind: resampling kernels remembered for each random speed factor; in the manner of a speech-recipe issue "speed perturbation with continuous factors eats GPU memory"
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


def sinc_kernel(orig, new, width=24, device="cuda"):
    idx = torch.arange(-width, width + orig, device=device)[None, :] / orig
    t = (torch.arange(0, -new, -1, device=device)[:, None] / new + idx) * min(orig, new)
    window = torch.cos(t.clamp(-6, 6) * math.pi / 12) ** 2
    t = t * math.pi
    return (torch.where(t == 0, torch.ones_like(t), torch.sin(t) / t) * window).unsqueeze(1)


class SpeedPerturb:
    def __init__(self, sample_rate=80, low=0.9, high=1.1):
        self.sample_rate = sample_rate
        self.low, self.high = low, high
        self.resamplers = {}

    def kernel_for(self, factor):
        if factor not in self.resamplers:
            new = int(self.sample_rate / factor)
            kernel = sinc_kernel(self.sample_rate, new)
            self.resamplers[factor] = kernel  # LEAK
        return self.resamplers[factor]

    def __call__(self, wav):
        k = self.kernel_for(random.uniform(self.low, self.high))
        out = F.conv1d(F.pad(wav, (24, 24 + self.sample_rate)), k, stride=self.sample_rate)
        return out.transpose(1, 2).reshape(wav.shape[0], 1, -1)


class SpeakerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 24, 40, 10), nn.ReLU(), nn.Conv1d(24, 32, 5, 2), nn.ReLU())
        self.out = nn.Linear(64, 20)

    def forward(self, x):
        h = self.conv(x)
        return self.out(torch.cat([h.mean(-1), h.std(-1)], 1))


def run_epoch(model, opt, perturb, batches):
    total = 0.0
    for _ in range(batches):
        wav = torch.randn(8, 1, 4000, device="cuda")
        spk = torch.randint(0, 20, (8,), device="cuda")
        loss = F.cross_entropy(model(perturb(wav)), spk)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        total += loss.item()
    return total / batches


random.seed(0)
model = SpeakerNet().cuda()
opt = torch.optim.AdamW(model.parameters(), 1e-3)
perturb = SpeedPerturb()
for epoch in range(5):
    print(f"epoch {epoch}: {run_epoch(model, opt, perturb, 40):.3f}")
