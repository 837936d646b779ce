# kind: each update of a dynamic sparsity pattern goes through prune.custom_from_mask(), whose method object stores the mask in the container of all earlier methods; after pytorch/pytorch PR 34263
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import prune

device = torch.device("cuda")
UPDATES = 70
STEPS_PER_UPDATE = 3
SPARSITY = 0.8
REGROW = 0.15


class Classifier(nn.Module):
    def __init__(self, dim=256, hidden=512, classes=20):
        super().__init__()
        self.inp = nn.Linear(dim, hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.out(F.relu(self.mid(F.relu(self.inp(x)))))


class DropAndGrow:
    """RigL-like schedule: the weakest connections go, those with the largest
    gradients come back; the number of live weights is the same throughout."""

    def __init__(self, layers, sparsity, fraction):
        self.layers = layers
        self.sparsity = sparsity
        self.fraction = fraction

    def start(self):
        for layer in self.layers:
            prune.random_unstructured(layer, "weight", amount=self.sparsity)

    @torch.no_grad()
    def propose(self, layer):
        current = layer.weight_mask
        alive = int(current.sum().item())
        swap = int(self.fraction * alive)
        strength = layer.weight_orig.abs().masked_fill(current == 0, float("inf")).flatten()
        weakest = strength.topk(swap, largest=False).indices
        gain = layer.weight_orig.grad.abs().masked_fill(current == 1, -1.0).flatten()
        strongest = gain.topk(swap).indices
        mask = current.clone().flatten()
        mask[weakest] = 0.0
        mask[strongest] = 1.0
        return mask.view_as(current)

    def update(self):
        for layer in self.layers:
            mask = self.propose(layer)
            layer.weight_mask.fill_(1.0)
            prune.custom_from_mask(layer, "weight", mask)  # LEAK

    def density(self):
        kept = sum(layer.weight_mask.sum().item() for layer in self.layers)
        return kept / sum(layer.weight_mask.numel() for layer in self.layers)


def batch(centres, n=128):
    y = torch.randint(0, centres.size(0), (n,), device=device)
    return centres[y] + 0.8 * torch.randn(n, centres.size(1), device=device), y


def main():
    torch.manual_seed(0)
    model = Classifier().to(device)
    centres = torch.randn(20, 256, device=device)
    schedule = DropAndGrow([model.inp, model.mid], SPARSITY, REGROW)
    schedule.start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for update in range(1, UPDATES + 1):
        for _ in range(STEPS_PER_UPDATE):
            x, y = batch(centres)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.update()
        if update % 10 == 0:
            print(f"update {update:3d}  loss {loss.item():.4f}  density {schedule.density():.3f}")

    with torch.no_grad():
        x, y = batch(centres, 1024)
        print("accuracy", (model(x).argmax(1) == y).float().mean().item())


main()
