# kind: https://github.com/KaijuML/data-to-text-hierarchical/issues/7: MoCo's queue of keys as a deque with maxlen
import copy
from collections import deque

import timm
import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"


class MoCo(nn.Module):
    def __init__(self, dim=256, keep=40, momentum=0.99, temperature=0.2):
        super().__init__()
        self.query = timm.create_model("resnet10t", pretrained=False, num_classes=dim)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.bank = deque(maxlen=keep)
        self.momentum, self.temperature = momentum, temperature

    @torch.no_grad()
    def update_key(self):
        for q, k in zip(self.query.parameters(), self.key.parameters()):
            k.lerp_(q, 1 - self.momentum)

    def forward(self, a, b):
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            self.update_key()
            k = F.normalize(self.key(b), dim=1)
        positive = (q * k).sum(1, keepdim=True)
        logits = [positive]
        if self.bank:
            negatives = torch.cat(list(self.bank))
            logits.append(q @ negatives.t())
        logits = torch.cat(logits, 1) / self.temperature
        self.bank.append(k)
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=device))


def two_views(batch, size=24):
    x = torch.rand(batch, 3, size, size, device=device)
    return x.flip(-1), (x + 0.1 * torch.randn_like(x)).clamp(0, 1)


def main():
    model = MoCo().to(device)
    optimizer = torch.optim.SGD(model.query.parameters(), lr=0.03, momentum=0.9)
    for step in range(80):
        a, b = two_views(128)
        loss = model(a, b)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"{step}: {loss.item():.4f} bank {len(model.bank)} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
