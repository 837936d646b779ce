# kind: an exponential average and a window of checkpoints; after epfml/schedules-and-scaling PR 2
import copy
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F


class LM(nn.Module):
    def __init__(self, vocab=512, dim=128, layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList([copy.deepcopy(layer) for _ in range(layers)])
        self.head = nn.Linear(dim, vocab)

    def forward(self, x):
        h = self.emb(x)
        for b in self.blocks:
            h = b(h)
        return self.head(h)


class ExponentialWeightAverager:
    def __init__(self, model, interval=5, decay=0.95, warmup=10):
        self.module = copy.deepcopy(model).eval()
        self.interval, self.decay, self.warmup = interval, decay, warmup
        self.num_updates = 0

    @torch.no_grad()
    def step(self, model, itr):
        if itr % self.interval != 0:
            return
        if itr <= self.warmup:
            self.module.load_state_dict(model.state_dict())
            return
        self.num_updates += 1
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        for avg, p in zip(self.module.parameters(), model.parameters()):
            avg.copy_(avg * decay + p * (1 - decay))


class WeightAverager:
    """uniform average of the checkpoints within the horizon"""

    def __init__(self, horizon=100, interval=10):
        self.window = deque(maxlen=horizon // interval)
        self.interval = interval

    def step(self, model, itr):
        if itr % self.interval == 0:
            self.window.append({k: v.detach().clone() for k, v in model.state_dict().items()})

    def averaged(self, model):
        avg = {k: torch.stack([w[k].float() for w in self.window]).mean(0) for k in self.window[0]}
        module = copy.deepcopy(model)
        module.load_state_dict(avg)
        return module


@torch.no_grad()
def eval_loss(model, n=3):
    total = 0.0
    for _ in range(n):
        x = torch.randint(0, 512, (4, 65)).cuda()
        total += F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).item()
    return total / n


def main():
    torch.manual_seed(0)
    model = LM().cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ema, wa = ExponentialWeightAverager(model), WeightAverager(horizon=80, interval=10)
    for itr in range(1, 201):
        x = torch.randint(0, 512, (4, 65)).cuda()
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.step(model, itr)
        wa.step(model, itr)
        if itr % 50 == 0:
            print(itr, eval_loss(model), eval_loss(ema.module), eval_loss(wa.averaged(model)))


if __name__ == "__main__":
    main()
