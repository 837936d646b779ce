# kind: confident unlabeled images move into the pseudo-labelled pool until all of them are in it; after self-training loops (google-research/noisystudent style)
import torch
from torch import nn
import torch.nn.functional as F


class StudentNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 5, stride=2, padding=2)
        self.fc = nn.Linear(8 * 16 * 16, classes)

    def forward(self, x):
        return self.fc(F.relu(self.conv(x)).flatten(1))


class PseudoPool:
    def __init__(self):
        self.images, self.labels = [], []

    def __len__(self):
        return len(self.images)

    def extend(self, images, labels):
        for image, label in zip(images, labels):
            self.images.append(image.clone())
            self.labels.append(int(label))

    def batch(self, n):
        index = torch.randint(0, len(self.images), (n,)).tolist()
        x = torch.stack([self.images[i] for i in index])
        return x + 0.1 * torch.randn_like(x), torch.tensor([self.labels[i] for i in index], device=x.device)


def render(labels, g):
    base = torch.stack([torch.full((1, 32, 32), float(l) / 2) for l in labels])
    return base + 0.5 * torch.randn(base.shape, generator=g)


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(24) % 4
    labeled = render(labels.tolist(), g).cuda(), labels.cuda()
    hidden = torch.randint(0, 4, (300,), generator=g).tolist()
    unlabeled = render(hidden, g)
    remaining = list(range(300))
    model = StudentNet(4).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pool, threshold = PseudoPool(), 0.9
    for step in range(180):
        x, y = labeled
        if len(pool):
            px, py = pool.batch(32)
            x, y = torch.cat([x, px]), torch.cat([y, py])
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3 and remaining:
            take = remaining[:32]
            images = unlabeled[take].cuda()
            with torch.no_grad():
                confidence, guess = model(images).softmax(-1).max(-1)
            accepted = (confidence > threshold).tolist()
            pool.extend([im for im, a in zip(images, accepted) if a], [l for l, a in zip(guess.tolist(), accepted) if a])
            remaining = [i for i, a in zip(take, accepted) if not a][::-1] + remaining[32:]
            remaining = remaining[16:] + remaining[:16]
            threshold = max(0.3, threshold - 0.03)
    print("pool", len(pool), "remaining", len(remaining), "loss", loss.item())


main()
