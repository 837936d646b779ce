# kind: key queue joined by torch.cat until it has its size, then the oldest go; from MoCo-like repositories
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F


class Moco(nn.Module):
    def __init__(self, encoder, queue_size=8000, m=0.99, t=0.1):
        super().__init__()
        self.q_enc = encoder
        self.k_enc = copy.deepcopy(encoder)
        for p in self.k_enc.parameters():
            p.requires_grad_(False)
        self.queue_size, self.m, self.t = queue_size, m, t
        self.queue = None

    @torch.no_grad()
    def momentum_update(self):
        for q, k in zip(self.q_enc.parameters(), self.k_enc.parameters()):
            k.mul_(self.m).add_(q, alpha=1 - self.m)

    @torch.no_grad()
    def enqueue(self, keys):
        if self.queue is None:
            self.queue = keys
        else:
            self.queue = torch.cat([self.queue, keys])[-self.queue_size:].clone()

    def forward(self, a, b):
        q = F.normalize(self.q_enc(a), dim=1)
        with torch.no_grad():
            self.momentum_update()
            k = F.normalize(self.k_enc(b), dim=1)
        pos = (q * k).sum(1, keepdim=True)
        logits = pos if self.queue is None else torch.cat([pos, q @ self.queue.T], dim=1)
        labels = torch.zeros(len(q), dtype=torch.long, device=q.device)
        loss = F.cross_entropy(logits / self.t, labels)
        self.enqueue(k)
        return loss


def two_views(bs, device):
    x = torch.randn(bs, 64)
    return [(x + 0.1 * torch.randn_like(x)).to(device) for _ in range(2)]


def main():
    device = torch.device("cuda")
    enc = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 256))
    model = Moco(enc).to(device)
    opt = torch.optim.SGD(model.q_enc.parameters(), lr=0.05, momentum=0.9)
    for step in range(120):
        loss = model(*two_views(160, device))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(step, f"{loss.item():.3f}", tuple(model.queue.shape))


if __name__ == "__main__":
    main()
