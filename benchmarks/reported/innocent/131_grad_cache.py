# kind: representations and their gradients are collected over sub-batches and dropped at the end of each step while the batch grows to its full size; after luyug/GradCache
import torch
from torch import nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, vocab=300, dim=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.Sequential(nn.Linear(dim, 96), nn.GELU(), nn.Linear(96, dim))

    def forward(self, ids):
        h = self.embed(ids)
        return F.normalize((h + self.layers(h)).mean(1), dim=-1)


class GradCache:
    def __init__(self, models, chunk, temperature):
        self.models, self.chunk, self.temperature = models, chunk, temperature
        self.reps = [[] for _ in models]
        self.grads = []

    @torch.no_grad()
    def _forward_all(self, inputs):
        for model, x, reps in zip(self.models, inputs, self.reps):
            for part in x.split(self.chunk):
                reps.append(model(part))

    def _build_cache(self):
        leaves = [torch.cat(reps).requires_grad_() for reps in self.reps]
        logits = leaves[0] @ leaves[1].t() / self.temperature
        loss = F.cross_entropy(logits, torch.arange(logits.shape[0], device=logits.device))
        loss.backward()
        self.grads = [leaf.grad for leaf in leaves]
        return loss.detach()

    def _backward_chunks(self, inputs):
        for model, x, grad in zip(self.models, inputs, self.grads):
            for part, g in zip(x.split(self.chunk), grad.split(self.chunk)):
                torch.dot(model(part).flatten(), g.flatten()).backward()

    def step(self, *inputs):
        self._forward_all(inputs)
        loss = self._build_cache()
        self._backward_chunks(inputs)
        for reps in self.reps:
            reps.clear()
        return loss


torch.manual_seed(0)
query, passage = Encoder().cuda(), Encoder().cuda()
optimizer = torch.optim.AdamW([*query.parameters(), *passage.parameters()], lr=1e-3)
gc = GradCache([query, passage], chunk=32, temperature=0.05)
for step in range(80):
    batch = min(64 + 16 * (step // 4), 160)
    ids = torch.randint(0, 300, (batch, 16), device="cuda")
    other = ids.roll(1, dims=1)
    optimizer.zero_grad()
    loss = gc.step(ids, other)
    optimizer.step()
print("loss", loss.item())
