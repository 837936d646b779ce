# CARD: 4GiB
# KNOBS: BATCH=10240 AUTOCAST DATA_ON_CPU INPLACE_NORM CHECKPOINT=Block CHECKPOINT_PATHS=net.* OPT FUSED
# EXPERT: the whole data set lies on the GPU (and normalization makes a second copy); keep it on the CPU and move batches, then the batch of the deep MLP
import os

import numpy as np
import torch
import torch.nn as nn

import knobs

device = torch.device("cuda")
torch.manual_seed(0)

# gene expression matrix: cells x genes, came from a .npy file
N, D, C = 450_000, 1024, 40
X = np.zeros((N, D), dtype=np.float32)
Y = np.random.randint(0, C, N)

BS = int(os.environ.get("BATCH", 10240))
N_BLOCKS = 40
WIDTH = 512

# everything on the GPU, it is faster than a DataLoader
X = knobs.data(torch.from_numpy(X), device)
Y = knobs.data(torch.from_numpy(Y), device)
print("data on", X.device, f"{X.nbytes / 1e9:.2f} GB")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.bn = nn.BatchNorm1d(width)
        self.act = nn.GELU()
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.act(self.bn(self.fc(x))))


class DeepMLP(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Linear(D, WIDTH), nn.GELU()]
        layers += [Block(WIDTH) for _ in range(N_BLOCKS)]
        layers += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, C)]
        self.net = nn.Sequential(*layers)

    def forward(self, x):
        return self.net(x)


model = DeepMLP().to(device)
knobs.apply(model)
print(model.net[0], "...", sum(p.numel() for p in model.parameters()), "parameters")

mean, std = X[:10000].mean(0), X[:10000].std(0) + 1e-6
if X.is_cuda and os.environ.get("INPLACE_NORM") == "1":
    X.sub_(mean).div_(std)
elif X.is_cuda:
    X = (X - mean) / std
mean, std = mean.to(device), std.to(device)

n_train = int(0.9 * N)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = nn.CrossEntropyLoss()

model.train()
perm = torch.randperm(n_train)
for it in range(3):
    idx = perm[it * BS:(it + 1) * BS].to(X.device)
    xb, yb = X[idx].to(device), Y[idx].to(device)
    if not X.is_cuda:
        xb = (xb - mean) / std
    with knobs.autocast():
        loss = loss_fn(model(xb), yb)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("it", it, "loss", loss.item())

model.eval()
hits = 0
with torch.no_grad():
    for s in range(n_train, N, BS):
        xb, yb = X[s:s + BS].to(device), Y[s:s + BS].to(device)
        with knobs.autocast():
            hits += (model(xb).argmax(1) == yb).sum().item()
print("accuracy", hits / (N - n_train))

print("PEAK", torch.cuda.max_memory_allocated())
