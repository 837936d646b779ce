# kind: global module hook is registered for each evaluation and its handle is thrown away, so the collectors of all earlier evaluations go on collecting; in the manner of hook leaks such as jmschrei/tangermeme pull 84
import torch
import torch.nn as nn
from torch.nn.modules.module import register_module_forward_hook


class ResMLP(nn.Module):
    def __init__(self, dim=96, depth=3, classes=10):
        super().__init__()
        self.inp = nn.Linear(32, dim)
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.out = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.out(x)


def dead_units(activations):
    """Fraction of the units which never fire."""
    if not activations:
        return 0.0
    dead = [(a <= 0).all(0).float().mean().item() for a in activations]
    return sum(dead) / len(dead)


def collect_activations(kinds=(nn.Linear,)):
    activations = []

    def hook(module, inputs, output):
        if isinstance(module, kinds) and not module.training:
            activations.append(output.detach())  # LEAK

    register_module_forward_hook(hook)  # ALSO
    return activations


def evaluate(model, batches):
    model.eval()
    activations = collect_activations()
    correct = total = 0
    with torch.no_grad():
        for x, y in batches:
            correct += (model(x).argmax(-1) == y).sum().item()
            total += len(y)
    return correct / total, dead_units(activations)


def make_batches(n, device, size=64):
    out = []
    for _ in range(n):
        x = torch.randn(size, 32, device=device)
        out.append((x, (x[:, 0] > 0).long() * 3))
    return out


torch.manual_seed(0)
device = torch.device("cuda")
model = ResMLP().to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
train_batches = make_batches(10, device)
val_batches = make_batches(2, device)

for epoch in range(80):
    model.train()
    for x, y in train_batches:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    acc, dead = evaluate(model, val_batches)
    if epoch % 20 == 0:
        print(f"epoch {epoch} loss {loss.item():.4f} acc {acc:.3f} dead {dead:.3f}")
