# kind: https://github.com/MoonshotAI/Kimi-Audio/issues/117: a dataset caches each decoded item on the GPU: the first epoch fills it
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

device = "cuda"


class CachedAudio(Dataset):
    """Decoding takes long, so each clip is decoded once and stays on the card."""

    def __init__(self, clips, samples=8000):
        self.clips, self.samples = clips, samples
        self.cache = {}

    def decode(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(self.samples, generator=g)

    def __len__(self):
        return self.clips

    def __getitem__(self, i):
        if i not in self.cache:
            self.cache[i] = self.decode(i).to(device)
        return self.cache[i], i % 12


class Keyword(nn.Module):
    def __init__(self, classes=12, width=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, width, 80, 16), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(4),
            nn.Conv1d(width, width, 3), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(4),
            nn.Conv1d(width, 2 * width, 3), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        )
        self.out = nn.Linear(2 * width, classes)

    def forward(self, x):
        return self.out(self.net(x[:, None]))


def main():
    data = CachedAudio(480)
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=0, drop_last=True)
    model = Keyword().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    step = 0
    for epoch in range(3):
        for x, y in loader:
            y = y.to(device)
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 15 == 0:
                print(f"epoch {epoch} step {step}: {loss.item():.4f} cached {len(data.cache)} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
