# kind: dicts of tensors given to an experiment logger in offline mode stay in its history, an uncertainty score among them still has its graph; from wandb issue 354 and facebookresearch/mmf PR 560
import math
import time
from itertools import count

import torch
from torch import nn


class Run:
    """Small stand-in for a tracker without a connection: rows are uploaded on finish()."""

    def __init__(self, project, config):
        self.project, self.config = project, config
        self.history, self.summary = [], {}
        self._step = count()

    def log(self, row, commit=True):
        row = dict(row, _step=next(self._step), _timestamp=time.time())
        self.history.append(row)  # LEAK
        self.summary.update({k: v for k, v in row.items() if isinstance(v, (int, float))})

    def finish(self):
        rows = [{k: v.item() if torch.is_tensor(v) else v for k, v in row.items()} for row in self.history]
        print(f"{self.project}: uploading {len(rows)} rows, keys {sorted(rows[-1])}")


def get_batch(corpus, batch, block, gen):
    ix = torch.randint(len(corpus) - block - 1, (batch,), generator=gen)
    x = torch.stack([corpus[i:i + block] for i in ix])
    y = torch.stack([corpus[i + 1:i + 1 + block] for i in ix])
    return x.cuda(), y.cuda()


class CharModel(nn.Module):
    def __init__(self, vocab, width=64, block=64):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, width), nn.Parameter(torch.zeros(block, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(width, vocab)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(block))

    def forward(self, x):
        return self.out(self.enc(self.tok(x) + self.pos, mask=self.mask))


def lr_at(step, total, peak=3e-3, warmup=10):
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def main():
    text = "the quick brown fox jumps over the lazy dog and runs back home again. " * 60
    chars = sorted(set(text))
    corpus = torch.tensor([chars.index(c) for c in text])
    cfg = dict(batch=16, block=64, steps=110)
    run = Run("char-lm", cfg)
    model = CharModel(len(chars)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(0)

    for step in range(cfg["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, cfg["steps"])
        x, y = get_batch(corpus, cfg["batch"], cfg["block"], gen)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        logp = logits.log_softmax(-1)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        run.log({"loss": loss.item(), "entropy": entropy, "grad_norm": norm.item(), "lr": optimizer.param_groups[0]["lr"]})
        if step % 30 == 0:
            print(step, "loss %.3f" % loss.item())
    run.finish()


main()
