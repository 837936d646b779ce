# kind: growing history of tensors that were moved to the CPU first (saliency maps and losses); from forum answers ("detach().cpu() before you append")
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Blobs(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        img = torch.rand(1, 48, 48, generator=g)
        y = i % 4
        img[:, 24 * (y // 2):24 * (y // 2) + 24, 24 * (y % 2):24 * (y % 2) + 24] += 0.5
        return img, y


def tqdm_like(it, every=40):
    for n, x in enumerate(it):
        if n % every == 0:
            print(f"... {n} batches")
        yield x


class Recorder:
    def __init__(self):
        self.saliency, self.losses, self.preds = [], [], []

    def __call__(self, x, loss, out):
        self.saliency.append(x.grad.abs().cpu())
        self.losses.append(loss.detach().cpu())
        self.preds.append(out.detach().cpu())


model = nn.Sequential(nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 16, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 81, 4)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
rec = Recorder()
for epoch in range(3):
    for x, y in tqdm_like(DataLoader(Blobs(), batch_size=8, shuffle=True)):
        x = x.cuda().requires_grad_(True)
        out = model(x)
        loss = nn.functional.cross_entropy(out, y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
        rec(x, loss, out)
print("mean saliency map:", torch.cat(rec.saliency).mean(0).shape, "losses:", torch.stack(rec.losses).shape)
