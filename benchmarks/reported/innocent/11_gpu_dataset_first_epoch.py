# kind: samples moved to the GPU batch by batch in the first epoch and used from there afterwards; from forum posts on caching data sets
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    """Made on the fly, as slow as the reading of NIfTI files."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        vol = torch.rand(1, 16, 32, 32, generator=g)
        return i, vol, vol.mean()


class CachingLoader:
    def __init__(self, dataset, batch_size, device):
        self.loader = DataLoader(dataset, batch_size=batch_size, shuffle=False)
        self.device = device
        self.cache = []
        self.complete = False

    def __iter__(self):
        if self.complete:
            for i in torch.randperm(len(self.cache)).tolist():
                yield self.cache[i]
            return
        for idx, vol, target in self.loader:
            item = (vol.to(self.device), target.to(self.device))
            self.cache.append(item)
            yield item
        self.complete = True


def main():
    device = torch.device("cuda")
    data = CachingLoader(Volumes(400), batch_size=10, device=device)
    net = nn.Sequential(
        nn.Conv3d(1, 4, 4, stride=4), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * 4 * 8 * 8, 32), nn.ReLU(), nn.Linear(32, 1),
    ).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(3):
        total = 0.0
        for vol, target in data:
            loss = (net(vol).squeeze(1) - target).abs().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        print(f"epoch {epoch} mean error {total / len(data.cache):.4f}")


if __name__ == "__main__":
    main()
