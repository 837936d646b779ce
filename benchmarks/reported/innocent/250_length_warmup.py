# kind: innocent, sequence length is warmed up from 16 to 128 over 50 steps and stays there; in the manner of DeepSpeed curriculum learning / shortformer
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

CFG = dict(vocab=256, dim=96, heads=4, layers=2, batch=4, max_len=128, min_len=16,
           warmup=50, steps=130, lr=1e-3)


class CurriculumScheduler:
    """fixed_linear schedule with a difficulty step of 8"""

    def __init__(self, lo, hi, total, step=8):
        self.lo, self.hi, self.total, self.step = lo, hi, total, step

    def difficulty(self, t):
        d = self.lo + (self.hi - self.lo) * min(1.0, t / self.total)
        return min(self.hi, int(d) // self.step * self.step)


class CausalLM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok = nn.Embedding(c["vocab"], c["dim"])
        layer = nn.TransformerEncoderLayer(c["dim"], c["heads"], 2 * c["dim"], 0.0,
                                           batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, c["layers"], enable_nested_tensor=False)
        self.head = nn.Linear(c["dim"], c["vocab"])
        self.masks = {}

    def positions(self, n, dim, device):
        pos = torch.arange(n, device=device).unsqueeze(1)
        div = torch.exp(torch.arange(0, dim, 2, device=device) * (-math.log(1e4) / dim))
        return torch.cat([torch.sin(pos * div), torch.cos(pos * div)], 1)

    def mask(self, n, device):
        if n not in self.masks:
            self.masks[n] = torch.triu(torch.full((n, n), -math.inf, device=device), 1)
        return self.masks[n]

    def forward(self, ids):
        n = ids.size(1)
        x = self.tok(ids)
        x = x + self.positions(n, x.size(-1), ids.device)
        return self.head(self.enc(x, mask=self.mask(n, ids.device)))


def run(c=CFG):
    torch.manual_seed(0)
    model = CausalLM(c).to("cuda")
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"])
    schedule = CurriculumScheduler(c["min_len"], c["max_len"], c["warmup"])
    keep = None
    for t in range(c["steps"]):
        n = schedule.difficulty(t)
        ids = torch.randint(0, c["vocab"], (c["batch"], n + 1), device="cuda")
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        keep = logits.detach()  # for the sample of the next log line
        if t % 26 == 0:
            sample = keep[0].argmax(-1)[:10].tolist()
            print(f"step {t} len {n} loss {loss.item():.3f} sample {sample}")


run()
