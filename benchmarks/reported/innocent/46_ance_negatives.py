# kind: passage embeddings of the whole corpus are collected for hard negatives every 40 steps, the new index takes the place of the old and each step's negatives gather in a pool until the refresh; from ANCE / DPR training questions
import torch
import torch.nn as nn
import torch.nn.functional as F


class Tower(nn.Module):
    def __init__(self, vocab=3000, d=128):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, d)
        self.ff = nn.Linear(d, d)

    def forward(self, ids):
        return F.normalize(self.ff(torch.tanh(self.bag(ids))), dim=-1)


class Ance:
    def __init__(self, corpus, refresh=40, per_query=4):
        self.corpus, self.refresh, self.per_query = corpus, refresh, per_query
        self.model = Tower().cuda()
        self.opt = torch.optim.Adam(self.model.parameters(), 2e-3)
        self.index = None
        self.mined = []

    @torch.no_grad()
    def rebuild(self):
        parts = []
        for chunk in self.corpus.split(256):
            parts.append(self.model(chunk.cuda()))
        self.index = torch.cat(parts)
        self.mined.clear()

    def hard_negatives(self, q, positive):
        scores = q.detach() @ self.index.T
        scores.scatter_(1, positive[:, None], -2)
        top = scores.topk(self.per_query, dim=1).indices
        self.mined.append((scores, top))
        return self.corpus[top.cpu()].cuda()

    def step(self, i, queries, positive):
        if i % self.refresh == 0:
            self.rebuild()
        q = self.model(queries.cuda())
        p = self.model(self.corpus[positive].cuda())
        neg = self.hard_negatives(q, positive.cuda())
        n = self.model(neg.flatten(0, 1)).view(len(q), self.per_query, -1)
        logits = torch.cat([q @ p.T, torch.einsum("bd,bkd->bk", q, n)], 1) / 0.1
        loss = F.cross_entropy(logits, torch.arange(len(q), device=q.device))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def churn(self):
        seen = torch.cat([t.flatten() for _, t in self.mined])
        return seen.unique().numel() / len(self.corpus)


torch.manual_seed(0)
corpus = torch.randint(3000, (2048, 16))
trainer = Ance(corpus)
for i in range(200):
    pos = torch.randint(len(corpus), (32,))
    query = corpus[pos][:, torch.randperm(16)[:8]]
    loss = trainer.step(i, query, pos)
    if i % 40 == 39:
        print("step", i + 1, "loss %.3f" % loss, "part of the corpus mined %.2f" % trainer.churn())
