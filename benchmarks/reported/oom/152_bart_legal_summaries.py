# CARD: 12GiB
# KNOBS: BATCH=1,2 CHECKPOINT=BartEncoderLayer,BartDecoderLayer AUTOCAST=1 SDPA=1 OPT=adafactor
# EXPERT: BART-large with Adam needs 6 GB before the first token; 1024-token contracts with eager attention add about 2 GB for each sample: batch 1, or checkpoint the encoder layers, SDPA, Adafactor
# in the manner of a Hugging Face forum topic "fine-tuning bart-large on BillSum, RTX 3060 12GB, OOM at batch 6"
import os

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers import BartConfig, BartForConditionalGeneration

BATCH = int(os.environ.get("BATCH", 6))
CHECKPOINT = os.environ.get("CHECKPOINT", "")
AUTOCAST = os.environ.get("AUTOCAST") == "1"
SDPA = os.environ.get("SDPA") == "1"
OPT = os.environ.get("OPT", "adamw")


class LabelSmoother:
    def __init__(self, epsilon=0.1, ignore_index=-100):
        self.epsilon, self.ignore_index = epsilon, ignore_index

    def __call__(self, logits, labels):
        log_probs = -F.log_softmax(logits, dim=-1)
        labels = labels.unsqueeze(-1)
        padding = labels.eq(self.ignore_index)
        nll = log_probs.gather(-1, labels.clamp(min=0)).masked_fill(padding, 0.0)
        smooth = log_probs.sum(-1, keepdim=True, dtype=torch.float32).masked_fill(padding, 0.0)
        n = padding.numel()
        return (1 - self.epsilon) * nll.sum() / n + self.epsilon * smooth.sum() / (n * log_probs.shape[-1])


def with_checkpointing(model, name):
    for m in model.modules():
        if type(m).__name__ == name:
            m.forward = (lambda f: lambda *a, **k: checkpoint(f, *a, use_reentrant=False, **k))(m.forward)


def bills(n, source=1024, target=256):
    for _ in range(n):
        yield {"input_ids": torch.randint(4, 50265, (BATCH, source)), "labels": torch.randint(4, 50265, (BATCH, target))}


def main():
    config = BartConfig(attn_implementation="sdpa" if SDPA else "eager")
    model = BartForConditionalGeneration(config).cuda().train()
    if CHECKPOINT:
        with_checkpointing(model, CHECKPOINT)
    if OPT == "adafactor":
        opt = torch.optim.Adafactor(model.parameters(), lr=1e-3)
    else:
        opt = torch.optim.AdamW(model.parameters(), lr=3e-5)
    smoother = LabelSmoother()
    for batch in bills(3):
        ids, labels = batch["input_ids"].cuda(), batch["labels"].cuda()
        with torch.autocast("cuda", torch.bfloat16, enabled=AUTOCAST):
            out = model(input_ids=ids, decoder_input_ids=labels.roll(1, 1), use_cache=False)
            loss = smoother(out.logits, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
    print("PEAK", torch.cuda.max_memory_allocated())


main()
