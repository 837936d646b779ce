# CARD: 16GiB
# KNOBS: BATCH=8192 AUTOCAST SPARSE OPT FUSED DTYPE=bf16
# EXPERT: dense gradients and Adam moments of 20M x 64 embedding tables (4x the table); sparse=True with SparseAdam, or SGD/Adagrad, smaller tables
import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

import knobs

N_USERS = 12_000_000
N_ITEMS = 8_000_000
EMB_DIM = 64
SPARSE = os.environ.get("SPARSE") == "1"
BATCH_SIZE = int(os.environ.get("BATCH", 8192))


class InteractionDataset(Dataset):
    def __init__(self, n):
        self.users = torch.randint(0, N_USERS, (n,))
        self.items = torch.randint(0, N_ITEMS, (n,))
        self.clicked = (torch.rand(n) > 0.5).float()

    def __len__(self):
        return len(self.users)

    def __getitem__(self, i):
        return self.users[i], self.items[i], self.clicked[i]


class TwoTower(nn.Module):
    def __init__(self, n_users, n_items, dim):
        super().__init__()
        self.user_emb = nn.Embedding(n_users, dim, sparse=SPARSE)
        self.item_emb = nn.Embedding(n_items, dim, sparse=SPARSE)
        self.user_bias = nn.Embedding(n_users, 1, sparse=SPARSE)
        self.item_bias = nn.Embedding(n_items, 1, sparse=SPARSE)
        self.mlp = nn.Sequential(
            nn.Linear(2 * dim, 256), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(256, 128), nn.ReLU(),
            nn.Linear(128, 1),
        )
        nn.init.normal_(self.user_emb.weight, std=0.01)
        nn.init.normal_(self.item_emb.weight, std=0.01)

    def forward(self, users, items):
        u, v = self.user_emb(users), self.item_emb(items)
        deep = self.mlp(torch.cat([u, v], dim=1)).squeeze(1)
        bias = self.user_bias(users).squeeze(1) + self.item_bias(items).squeeze(1)
        return (u * v).sum(1) + deep + bias


def get_optimizers(model):
    if not SPARSE:
        return [torch.optim.Adam(model.parameters(), lr=1e-3)]
    sparse = [p for n, p in model.named_parameters() if "emb" in n or "bias.weight" in n]
    dense = list(model.mlp.parameters())
    return [torch.optim.SparseAdam(sparse, lr=1e-3), torch.optim.Adam(dense, lr=1e-3)]


device = "cuda"
with torch.device(device):
    model = TwoTower(N_USERS, N_ITEMS, EMB_DIM)
knobs.apply(model)
print("model on GPU:", torch.cuda.memory_allocated() // 2**20, "MiB")

loader = DataLoader(InteractionDataset(3 * BATCH_SIZE), batch_size=BATCH_SIZE, shuffle=True)
optimizers = get_optimizers(model)
criterion = nn.BCEWithLogitsLoss()

for epoch in range(1):
    total_loss = 0
    for step, (users, items, clicked) in enumerate(loader):
        users, items, clicked = users.to(device), items.to(device), clicked.to(device)
        for o in optimizers:
            o.zero_grad()
        with knobs.autocast():
            loss = criterion(model(users, items).float(), clicked)
        loss.backward()
        for o in optimizers:
            o.step()
        total_loss += loss.item()
        print("batch", step, "loss", total_loss / (step + 1))

print("PEAK", torch.cuda.max_memory_allocated())
