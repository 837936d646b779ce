# kind: innocent, MoCo dictionary queue grows by concatenation until K and is then cut; from facebookresearch/moco colab notebook
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
                                  nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.fc = nn.Linear(32, dim)

    def forward(self, x):
        return F.normalize(self.fc(self.body(x).flatten(1)), dim=1)


class MoCo(nn.Module):
    def __init__(self, K=2560, m=0.99, T=0.1):
        super().__init__()
        self.K, self.m, self.T = K, m, T
        self.encoder_q = Encoder()
        self.encoder_k = copy.deepcopy(self.encoder_q).requires_grad_(False)
        self.register_buffer("queue", torch.empty(0, 128))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.mul_(self.m).add_(q, alpha=1 - self.m)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        self.queue = torch.cat((keys, self.queue))[: self.K].clone()

    def forward(self, im_q, im_k):
        q = self.encoder_q(im_q)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            k = self.encoder_k(im_k)
        l_pos = (q * k).sum(1, keepdim=True)
        l_neg = q @ self.queue.t()
        logits = torch.cat((l_pos, l_neg), 1) / self.T
        labels = torch.zeros(len(q), dtype=torch.long, device=q.device)
        self._dequeue_and_enqueue(k)
        return F.cross_entropy(logits, labels)


def two_crops(images):
    views = []
    for _ in range(2):
        dx, dy = torch.randint(0, 8, (2,)).tolist()
        v = images[:, :, dy : dy + 24, dx : dx + 24]
        views.append((v + 0.1 * torch.randn_like(v)).flip(-1) if torch.rand(()) < 0.5 else v)
    return views


def train(epochs=5, steps=40, batch_size=32):
    model = MoCo().cuda()
    optimizer = torch.optim.SGD(model.encoder_q.parameters(), lr=0.06, momentum=0.9, weight_decay=1e-4)
    for epoch in range(epochs):
        total = 0.0
        for _ in range(steps):
            im_q, im_k = two_crops(torch.rand(batch_size, 3, 32, 32, device="cuda"))
            loss = model(im_q, im_k)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / steps:.3f} queue {len(model.queue)}")


if __name__ == "__main__":
    torch.manual_seed(0)
    train()
