# kind: layers append their auxiliary losses to a global list which each optimizer step clears, while accumulation goes from 1 to 4 micro-batches; after databricks/megablocks clear_load_balancing_loss
import torch
from torch import nn
import torch.nn.functional as F

_AUX = []


class Router(nn.Module):
    def __init__(self, dim, experts):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)

    def forward(self, x):
        probs = self.gate(x).softmax(-1)
        _AUX.append(probs)
        return probs


class MoEBlock(nn.Module):
    def __init__(self, dim, experts):
        super().__init__()
        self.router = Router(dim, experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim)) for _ in range(experts))

    def forward(self, x):
        probs = self.router(x)
        return x + sum(p.unsqueeze(-1) * e(x) for p, e in zip(probs.unbind(-1), self.experts))


class Model(nn.Module):
    def __init__(self, vocab=100, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.Sequential(MoEBlock(dim, 4), MoEBlock(dim, 4))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.blocks(self.embed(ids)))


def aux_loss():
    terms = [p.reshape(-1, p.shape[-1]).mean(0).pow(2).sum() * p.shape[-1] for p in _AUX]
    return torch.stack(terms).mean()


torch.manual_seed(0)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(110):
    micro = min(1 + step // 10, 4)
    total = 0.0
    optimizer.zero_grad()
    for _ in range(micro):
        ids = torch.randint(0, 100, (4, 25), device="cuda")
        logits = model(ids[:, :-1])
        total = total + F.cross_entropy(logits.reshape(-1, 100), ids[:, 1:].reshape(-1)) / micro
    loss = total + 0.01 * aux_loss()
    loss.backward()
    optimizer.step()
    _AUX.clear()
print("loss", loss.item())
