# kind: masked pre-training first, then a head is added and Adam takes the place of SGD, so the second phase needs more; from two-stage training questions
import gc
import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, d_in=32, d=192):
        super().__init__()
        self.inp = nn.Linear(d_in, d)
        self.l = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.l(self.inp(x))


class Phase:
    name = "?"
    history: list

    def run(self, steps):
        self.history = []
        for i in range(steps):
            loss = self.loss(i)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            self.history.append(loss.item())
        print(f"{self.name}: {self.history[0]:.4f} -> {self.history[-1]:.4f}")


class Pretrain(Phase):
    name = "pretrain"

    def __init__(self, enc):
        self.enc, self.dec = enc, nn.Linear(192, 32).cuda()
        self.opt = torch.optim.SGD([*enc.parameters(), *self.dec.parameters()], lr=0.05)

    def loss(self, i):
        x = torch.randn(8, 24, 32).cuda()
        mask = (torch.rand(8, 24, 1) < 0.3).float().cuda()
        return ((self.dec(self.enc(x * (1 - mask))) - x) ** 2 * mask).mean()


class Finetune(Phase):
    name = "finetune"

    def __init__(self, enc):
        self.enc = enc
        self.head = nn.Sequential(nn.LayerNorm(192), nn.Linear(192, 192), nn.GELU(), nn.Linear(192, 4)).cuda()
        self.opt = torch.optim.AdamW([*enc.parameters(), *self.head.parameters()], lr=1e-4)
        self.ema = {n: p.detach().clone() for n, p in enc.named_parameters()}

    def loss(self, i):
        y = torch.randint(0, 4, (8,))
        x = torch.randn(8, 24, 32) + y[:, None, None] * 0.2
        with torch.no_grad():
            for n, p in self.enc.named_parameters():
                self.ema[n].lerp_(p, 0.01)
        return F.cross_entropy(self.head(self.enc(x.cuda()).mean(1)), y.cuda())


enc = Encoder().cuda()
phase = Pretrain(enc)
phase.run(50)
del phase
gc.collect()
torch.cuda.empty_cache()
Finetune(enc).run(100)
