# kind: a queue of keys of fixed length is overwritten in turn; after facebookresearch/moco issue 129
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F


def base_encoder(dim):
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, dim))


class KeyQueue:
    def __init__(self, K, batch_size):
        self.batches = deque()
        self.K, self.batch_size = K, batch_size

    def enqueue_and_dequeue(self, keys):
        self.batches.append(keys)
        while len(self.batches) * self.batch_size > self.K:
            self.batches.popleft()

    def tensor(self):
        return torch.cat(list(self.batches), dim=0)


class MoCo(nn.Module):
    def __init__(self, dim=128, K=16384, m=0.999, T=0.07, batch_size=256):
        super().__init__()
        self.m, self.T = m, T
        self.encoder_q, self.encoder_k = base_encoder(dim), base_encoder(dim)
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data.copy_(q.data)
            k.requires_grad = False
        self.queue = KeyQueue(K, batch_size)

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data = k.data * self.m + q.data * (1.0 - self.m)

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            idx = torch.randperm(im_k.shape[0], device=im_k.device)
            k = F.normalize(self.encoder_k(im_k[idx]), dim=1)[torch.argsort(idx)]
        l_pos = (q * k).sum(dim=1, keepdim=True)
        self.queue.enqueue_and_dequeue(k)
        l_neg = q @ self.queue.tensor().t()
        logits = torch.cat([l_pos, l_neg], dim=1) / self.T
        labels = torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device)
        return logits, labels


def main():
    torch.manual_seed(0)
    model = MoCo().cuda()
    optimizer = torch.optim.SGD(model.encoder_q.parameters(), lr=0.03, momentum=0.9)
    criterion = nn.CrossEntropyLoss().cuda()
    for i in range(160):
        images = [torch.randn(256, 3, 16, 16).cuda() for _ in range(2)]
        output, target = model(im_q=images[0], im_k=images[1])
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 40 == 0:
            print(i, loss.item(), len(model.queue.batches))


if __name__ == "__main__":
    main()
