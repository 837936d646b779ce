# kind: Adam's moments of an expert come into being when the router (or the domain) first sends it tokens, rare experts are reached late; from mixture-of-experts training questions about memory that creeps up (tutel / fairseq)
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

DOMAINS = ["web", "news", "wiki", "books", "code", "math", "law", "medicine", "poems", "recipes", "chess", "latin"]


class Expert(nn.Sequential):
    def __init__(self, dim):
        super().__init__(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))


class DemixLM(nn.Module):
    def __init__(self, vocab=128, dim=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.shared = nn.GRU(dim, dim, batch_first=True)
        self.experts = nn.ModuleDict({d: Expert(dim) for d in DOMAINS})
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids, domain):
        h, _ = self.shared(self.emb(ids))
        return self.out(h + self.experts[domain](h))


def mixture(step):
    """Domains are admitted one after the other, the last at step 110."""
    admitted = 1 + min(step // 10, len(DOMAINS) - 1)
    return DOMAINS[admitted - 1] if step % 10 == 0 else random.choice(DOMAINS[:admitted])


def text(domain, batch=6, length=9):
    k = DOMAINS.index(domain) + 1
    start = torch.randint(128, (batch, 1))
    return (start + k * torch.arange(length)) % 128


random.seed(0)
torch.manual_seed(0)
lm = DemixLM().cuda()
opt = torch.optim.AdamW(lm.parameters(), lr=3e-3)
for step in range(180):
    domain = mixture(step)
    ids = text(domain).cuda()
    logits = lm(ids[:, :-1], domain)
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(f"step {step} {domain:9s} loss {loss.item():.3f} states {len(opt.state)}")
