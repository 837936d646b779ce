# kind: https://github.com/LibreYOLO/libreyolo/pull/541: curriculum of lengths: the bias of attention is cached for each length, up to the longest one
import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"
HEADS = 4


class AlibiCache:
    def __init__(self):
        self.by_length = {}

    def get(self, n):
        if n not in self.by_length:
            pos = torch.arange(n, device=device)
            distance = (pos[None] - pos[:, None]).clamp(max=0).float()
            slopes = torch.tensor([2.0 ** -(i + 1) for i in range(HEADS)], device=device)
            bias = slopes[:, None, None] * distance
            self.by_length[n] = bias.masked_fill((pos[None] > pos[:, None]), float("-inf"))
        return self.by_length[n]


ALIBI = AlibiCache()


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=ALIBI.get(n))
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.n2(x))


class LM(nn.Module):
    def __init__(self, vocab=300, dim=128, depth=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.blocks = nn.Sequential(*(Block(dim) for _ in range(depth)))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.blocks(self.emb(ids)))


def length_at(step, first=128, last=352, grow=8, every=2):
    return min(first + grow * (step // every), last)


def main():
    model = LM().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(110):
        n = length_at(step)
        ids = torch.randint(0, 300, (4, n + 1), device=device)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"{step}: length {n} loss {loss.item():.3f} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
