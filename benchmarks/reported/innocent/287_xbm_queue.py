# kind: kevinmusgrave/pytorch-metric-learning, cross-batch memory: embeddings are joined until the memory is full, then cut
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision


class CrossBatchMemory(nn.Module):
    def __init__(self, size, dim, margin=0.3):
        super().__init__()
        self.size, self.margin = size, margin
        self.feats = torch.empty(0, dim, device="cuda")
        self.labels = torch.empty(0, dtype=torch.long, device="cuda")

    def enqueue(self, feats, labels):
        self.feats = torch.cat([self.feats, feats.detach()])[-self.size:]
        self.labels = torch.cat([self.labels, labels])[-self.size:]

    def forward(self, feats, labels):
        self.enqueue(feats, labels)
        sim = feats @ self.feats.t()
        same = labels[:, None] == self.labels[None]
        return torch.where(same, 1 - sim, F.relu(sim - self.margin)).mean()


class Embedder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.body = torchvision.models.mobilenet_v3_small(weights=None)
        self.body.classifier = nn.Linear(576, dim)

    def forward(self, x):
        return F.normalize(self.body(x), dim=-1)


def main():
    model = Embedder(512).cuda()
    criterion = CrossBatchMemory(size=32 * 90, dim=512)
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    for step in range(160):
        images = torch.randn(32, 3, 64, 64, device="cuda")
        labels = torch.randint(0, 100, (32,), device="cuda")
        loss = criterion(model(images), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(tuple(criterion.feats.shape), torch.cuda.memory_allocated() >> 20, "MiB")


main()
