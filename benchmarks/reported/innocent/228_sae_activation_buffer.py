# kind: sparse autoencoder is trained on a mixing buffer of a language model's activations, it is filled once, served from in random order and filled up again when less than half is left, latents that died get new weights in place; from jbloomAus/SAELens (ActivationsStore) and neelnanda-io/1L-Sparse-Autoencoder questions on GPU memory
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass(frozen=True)
class Config:
    width: int = 96
    context: int = 64
    prompts: int = 16
    buffer_batches: int = 12
    train_batch: int = 512
    latents: int = 384
    l1: float = 2e-3
    dead_after: int = 40


class TinyLM(nn.Module):
    def __init__(self, cfg, vocab=300):
        super().__init__()
        self.emb = nn.Embedding(vocab, cfg.width)
        self.pos = nn.Parameter(0.02 * torch.randn(cfg.context, cfg.width))
        self.block = nn.TransformerEncoderLayer(cfg.width, 4, 2 * cfg.width, batch_first=True, dropout=0.0)

    @torch.no_grad()
    def residual(self, tokens):
        return self.block(self.emb(tokens) + self.pos).flatten(0, 1)


class ActivationsStore:
    def __init__(self, lm, cfg, device="cuda"):
        self.lm, self.cfg, self.device = lm, cfg, device
        self.rest = torch.empty(0, cfg.width, device=device)
        self.full = cfg.buffer_batches * cfg.prompts * cfg.context
        self.refills = 0

    def _prompts(self):
        return torch.randint(0, 300, (self.cfg.prompts, self.cfg.context)).to(self.device)

    def _refill_one(self):
        self.rest = torch.cat([self.rest, self.lm.residual(self._prompts())])

    def _mix(self):
        self.rest = self.rest[torch.randperm(len(self.rest), device=self.device)]
        self.refills += 1

    def __iter__(self):
        filling = True
        while True:
            if filling:
                self._refill_one()
                if len(self.rest) >= self.full:
                    self._mix()
                    filling = False
                elif self.refills:
                    continue
                else:
                    yield self.rest[torch.randint(0, len(self.rest), (self.cfg.train_batch,), device=self.device)]
                    continue
            batch, self.rest = self.rest[:self.cfg.train_batch].clone(), self.rest[self.cfg.train_batch:].clone()
            filling = len(self.rest) < self.full // 2
            yield batch


class SAE(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.enc = nn.Linear(cfg.width, cfg.latents)
        self.dec = nn.Linear(cfg.latents, cfg.width)
        self.register_buffer("idle", torch.zeros(cfg.latents, dtype=torch.long))

    def forward(self, x):
        z = F.relu(self.enc(x - self.dec.bias))
        with torch.no_grad():
            self.idle.add_(1).masked_fill_((z > 0).any(0), 0)
        return self.dec(z), z

    @torch.no_grad()
    def resample(self, x, errors, patience):
        dead = (self.idle > patience).nonzero()[:, 0]
        if len(dead):
            pick = torch.multinomial(errors, len(dead), replacement=True)
            direction = F.normalize(x[pick] - self.dec.bias, dim=1)
            self.enc.weight[dead], self.enc.bias[dead] = 0.2 * direction, 0.0
            self.dec.weight[:, dead] = direction.t()
            self.idle[dead] = 0
        return len(dead)


def main(steps=150):
    torch.manual_seed(0)
    cfg = Config()
    store = ActivationsStore(TinyLM(cfg).cuda().eval(), cfg)
    sae = SAE(cfg).cuda()
    opt = torch.optim.Adam(sae.parameters(), lr=2e-3)
    for step, x in zip(range(steps), store):
        y, z = sae(x)
        error = (y - x).square().sum(1)
        loss = error.mean() + cfg.l1 * z.abs().sum(1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 49:
            dead = sae.resample(x, error.detach(), cfg.dead_after)
            print(f"{step}: error {error.mean().item():.2f}, {dead} latents anew, buffer filled {store.refills} times")


if __name__ == "__main__":
    main()
