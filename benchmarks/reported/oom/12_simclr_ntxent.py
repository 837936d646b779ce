# CARD: 8GiB
# KNOBS: BATCH=512 MATMUL AUTOCAST CHECKPOINT=BasicBlock,CosineSimilarity CHECKPOINT_PATHS=encoder.layer1.* OPT FUSED
# EXPERT: cosine_similarity of unsqueezed embeddings makes 2B x 2B x dim tensors; normalize and use a matmul (2B x 2B), then the batch
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models import resnet18

import knobs

batch_size = int(os.environ.get("BATCH", 512))
temperature = 0.5
out_dim = 256
device = torch.device("cuda")


class SimCLR(nn.Module):
    def __init__(self, out_dim):
        super().__init__()
        self.encoder = resnet18()
        # cifar stem
        self.encoder.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.encoder.maxpool = nn.Identity()
        dim = self.encoder.fc.in_features
        self.encoder.fc = nn.Identity()
        self.projector = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, out_dim))

    def forward(self, x):
        h = self.encoder(x)
        return h, self.projector(h)


class NT_Xent(nn.Module):
    def __init__(self, batch_size, temperature):
        super().__init__()
        self.batch_size = batch_size
        self.temperature = temperature
        self.mask = self.mask_correlated_samples(batch_size)
        self.criterion = nn.CrossEntropyLoss(reduction="sum")
        self.similarity_f = nn.CosineSimilarity(dim=2)

    def mask_correlated_samples(self, batch_size):
        N = 2 * batch_size
        mask = torch.ones((N, N), dtype=bool)
        mask = mask.fill_diagonal_(0)
        idx = torch.arange(batch_size)
        mask[idx, batch_size + idx] = 0
        mask[batch_size + idx, idx] = 0
        # column numbers of the negatives of every row
        return torch.arange(N).expand(N, N)[mask].view(N, N - 2).to(device)

    def forward(self, z_i, z_j):
        N = 2 * self.batch_size
        z = torch.cat((z_i, z_j), dim=0)
        if os.environ.get("MATMUL") == "1":
            z = F.normalize(z, dim=1)
            sim = z @ z.T / self.temperature
        else:
            sim = self.similarity_f(z.unsqueeze(1), z.unsqueeze(0)) / self.temperature
        sim_i_j = torch.diag(sim, self.batch_size)
        sim_j_i = torch.diag(sim, -self.batch_size)
        positive_samples = torch.cat((sim_i_j, sim_j_i), dim=0).reshape(N, 1)
        negative_samples = sim.gather(1, self.mask)
        labels = torch.zeros(N, device=device).long()
        logits = torch.cat((positive_samples, negative_samples), dim=1)
        return self.criterion(logits, labels) / N


model = SimCLR(out_dim).to(device)
knobs.apply(model)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
criterion = NT_Xent(batch_size, temperature)


def augment(x):
    return x.flip(-1) + 0.05 * torch.randn_like(x)


model.train()
for step in range(3):
    images = torch.rand(batch_size, 3, 32, 32)
    x_i, x_j = augment(images).to(device), augment(images).to(device)
    optimizer.zero_grad()
    with knobs.autocast():
        h_i, z_i = model(x_i)
        h_j, z_j = model(x_j)
        loss = criterion(z_i, z_j)
    loss.backward()
    optimizer.step()
    print(f"Step [{step}]\t Loss: {loss.item():.4f}")

print("PEAK", torch.cuda.max_memory_allocated())
