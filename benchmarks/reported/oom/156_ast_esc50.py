# CARD: 10GiB
# KNOBS: BATCH=1,2,4 CHECKPOINT=ASTLayer AUTOCAST=1 SDPA=1
# EXPERT: 1214 patches of a 10 s clip: eager attention keeps 12x1214x1214 floats thrice in each of 12 layers; SDPA first, then a smaller batch or checkpointing
# in the manner of a GitHub issue of the Audio Spectrogram Transformer "ESC-50 recipe on a 3080 10GB"
import os

import torch
from torch.utils.checkpoint import checkpoint
from transformers import ASTConfig, ASTForAudioClassification


def mixup(a, b, la, lb, lam):
    return lam * a + (1 - lam) * b, lam * la + (1 - lam) * lb


class SpecAugment:
    def __init__(self, freq=24, time=96):
        self.freq, self.time = freq, time

    def __call__(self, fbank):
        fbank = fbank.clone()
        fbank[:, 100:100 + self.time] = 0
        fbank[:, :, 10:10 + self.freq] = 0
        return fbank


class Recipe:
    def __init__(self):
        self.batch = int(os.getenv("BATCH", "8"))
        self.model = ASTForAudioClassification(ASTConfig(
            num_labels=50, max_length=1024, num_mel_bins=128,
            attn_implementation="sdpa" if os.getenv("SDPA") == "1" else "eager")).to("cuda")
        target = os.getenv("CHECKPOINT")
        for m in self.model.modules():
            if target and type(m).__name__ == target:
                self.wrap(m)
        self.opt = torch.optim.Adam(self.model.parameters(), 5e-5, weight_decay=5e-7, betas=(0.95, 0.999))
        self.augment = SpecAugment()
        self.amp = os.getenv("AUTOCAST") == "1"

    @staticmethod
    def wrap(m):
        inner = m.forward
        m.forward = lambda *a, **k: checkpoint(inner, *a, use_reentrant=False, **k)

    def step(self):
        fbank = torch.randn(self.batch, 1024, 128, device="cuda")
        labels = torch.zeros(self.batch, 50, device="cuda")
        fbank, labels = mixup(fbank, fbank.flip(0), labels, labels.flip(0), 0.7)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.amp):
            logits = self.model(input_values=self.augment(fbank)).logits
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), labels)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()


recipe = Recipe()
for _ in range(3):
    recipe.step()
print("PEAK", torch.cuda.max_memory_allocated())
