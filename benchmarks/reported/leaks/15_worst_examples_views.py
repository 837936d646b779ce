# kind: one image out of each batch is remembered as a view and keeps the whole batch's storage; from forum threads about slices kept in lists
from dataclasses import dataclass, field
import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class WorstExample:
    step: int
    loss: float
    image: torch.Tensor


@dataclass
class ErrorGallery:
    """The worst image of each batch, to look at after training."""
    items: list = field(default_factory=list)

    def update(self, step, images, per_sample):
        i = per_sample.argmax().item()
        self.items.append(WorstExample(step, per_sample[i].item(), images[i]))  # LEAK

    def summary(self, k=3):
        top = sorted(self.items, key=lambda e: -e.loss)[:k]
        return ", ".join(f"step {e.step} ({e.loss:.2f}, mean {e.image.mean().item():.2f})" for e in top)


class ConvAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Conv2d(3, 12, 4, stride=4)
        self.dec = nn.ConvTranspose2d(12, 3, 4, stride=4)

    def forward(self, x):
        return self.dec(torch.tanh(self.enc(x)))


def augment(x):
    if torch.rand(()) < 0.5:
        x = x.flip(-1)
    return (x - 0.5) * 2


def main():
    device = torch.device("cuda")
    net = ConvAE().to(device)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    gallery = ErrorGallery()
    for step in range(120):
        batch = augment(torch.rand(48, 3, 48, 48)).to(device)
        recon = net(batch)
        per_sample = F.mse_loss(recon, batch, reduction="none").mean(dim=(1, 2, 3))
        loss = per_sample.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        gallery.update(step, batch, per_sample.detach())
        if (step + 1) % 40 == 0:
            print(f"{step + 1}: {loss.item():.4f}  worst: {gallery.summary()}")


if __name__ == "__main__":
    main()
