# kind: a step that runs out of its memory budget is repeated with smaller chunks, the failed attempt's activations go with the exception; from facebookresearch/fairseq and Lightning / accelerate discussions on find_executable_batch_size
import torch
import torch.nn as nn


class Budget:
    """Raises what the allocator would raise on a smaller card."""

    def __init__(self, mib):
        self.limit = mib * 2 ** 20

    def check(self):
        if torch.cuda.memory_allocated() > self.limit:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory (budget)")


class Encoder(nn.Module):
    def __init__(self, budget, vocab=300, dim=48, depth=4):
        super().__init__()
        self.budget = budget
        self.emb = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) for _ in range(depth))
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.emb(ids)
        for layer in self.layers:
            x = x + layer(x)
            self.budget.check()
        return self.out(x)


class Trainer:
    def __init__(self, model, lr=1e-3):
        self.model = model
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.retries = 0

    def attempt(self, ids, parts):
        self.opt.zero_grad(set_to_none=True)
        total = 0.0
        for chunk in ids.chunk(parts):
            logits = self.model(chunk[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten(), reduction="sum") / ids[:, 1:].numel()
            loss.backward()
            total += loss.item()
        self.opt.step()
        return total

    def train_step(self, ids):
        parts = 1
        while True:
            try:
                return self.attempt(ids, parts), parts
            except torch.cuda.OutOfMemoryError:
                if parts >= len(ids):
                    raise
            self.retries += 1
            parts *= 2


def sentences(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    for i in range(n):
        longest = 16 + (i * 7) % 60
        start = torch.randint(300, (16, 1), generator=g)
        yield (start + torch.arange(longest)) % 300


torch.manual_seed(0)
trainer = Trainer(Encoder(Budget(71)).cuda())
for i, ids in enumerate(sentences(90)):
    loss, parts = trainer.train_step(ids.cuda())
    if i % 15 == 0:
        print(f"batch {i} length {ids.shape[1]} loss {loss:.3f} in {parts} parts, {trainer.retries} retries")
