# kind: tensor hook on the attention map is a closure over the map itself, so map -> node -> hook -> map is a cycle through C++ which the collector does not break; in the manner of pytorch pull 102859 and issue 82528
import torch
import torch.nn as nn
import torch.nn.functional as F


class AttentionRelevance:
    """Running relevance of every position, attention times its gradient."""

    def __init__(self, length, momentum=0.95):
        self.momentum = momentum
        self.value = torch.zeros(length)

    def update(self, attn, grad):
        rel = (attn.detach() * grad).clamp(min=0).mean(dim=(0, 1, 2)).cpu()
        self.value.mul_(self.momentum).add_(rel, alpha=1 - self.momentum)


class MultiHeadPool(nn.Module):
    def __init__(self, dim, heads, length):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(dim, dim)
        self.relevance = AttentionRelevance(length)

    def forward(self, x):
        b, n, d = x.shape
        q = self.q(x).view(b, n, self.heads, -1).transpose(1, 2)
        k, v = self.kv(x).view(b, n, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        attn = ((q @ k.transpose(-1, -2)) * self.scale).softmax(-1)
        if self.training:
            attn.register_hook(lambda grad: self.relevance.update(attn, grad))  # LEAK
        y = (attn @ v).transpose(1, 2).reshape(b, n, d)
        return self.out(y)


class SequenceClassifier(nn.Module):
    def __init__(self, n_tokens=200, dim=48, heads=4, length=48, classes=5):
        super().__init__()
        self.emb = nn.Embedding(n_tokens, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(1, length, dim))
        self.attn = MultiHeadPool(dim, heads, length)
        self.norm = nn.LayerNorm(dim)
        self.fc = nn.Linear(dim, classes)

    def forward(self, tokens):
        x = self.emb(tokens) + self.pos
        x = self.norm(x + self.attn(x))
        return self.fc(x.mean(1))


class Trainer:
    def __init__(self, model, lr=1e-3, device="cuda"):
        self.device = device
        self.model = model.to(device)
        self.optim = torch.optim.Adam(self.model.parameters(), lr=lr)

    def batch(self, size=16):
        tokens = torch.randint(0, 200, (size, 48), device=self.device)
        return tokens, tokens.sum(1) % 5

    def training_step(self):
        tokens, labels = self.batch()
        loss = F.cross_entropy(self.model(tokens), labels)
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        return loss.item()

    def run(self, steps):
        self.model.train()
        for step in range(steps):
            loss = self.training_step()
            if step % 40 == 0:
                top = self.model.attn.relevance.value.topk(3).indices.tolist()
                print(f"step {step} loss {loss:.3f} most relevant positions {top}")


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer(SequenceClassifier()).run(120)
