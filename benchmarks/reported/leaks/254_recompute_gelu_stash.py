# kind: custom Function pushes its input on a class-level stack that only backward pops, evaluation never calls backward; own, in the manner of discuss.pytorch.org "memory leaks from custom function"
import torch
from torch import nn
from torch.autograd import Function
from torch.utils.data import DataLoader, TensorDataset


class RecomputeGELU(Function):
    """GELU that keeps no output; the inputs are stacked, last in, first out."""

    stack = []

    @staticmethod
    def forward(ctx, x):
        RecomputeGELU.stack.append(x.detach())  # LEAK
        return nn.functional.gelu(x)

    @staticmethod
    def backward(ctx, grad_output):
        x = RecomputeGELU.stack.pop()
        with torch.enable_grad():
            x = x.requires_grad_()
            y = nn.functional.gelu(x)
            (gx,) = torch.autograd.grad(y, x, grad_output)
        return gx


class FeedForward(nn.Module):
    def __init__(self, dim, mult=4):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, dim * mult)
        self.down = nn.Linear(dim * mult, dim)

    def forward(self, x):
        return x + self.down(RecomputeGELU.apply(self.up(self.norm(x))))  # ALSO


class MLPRegressor(nn.Module):
    def __init__(self, n_in, dim=64, depth=3):
        super().__init__()
        self.inp = nn.Linear(n_in, dim)
        self.blocks = nn.Sequential(*[FeedForward(dim) for _ in range(depth)])
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        return self.out(self.blocks(self.inp(x))).squeeze(-1)


def make_loader(n, n_in, batch_size, shuffle):
    x = torch.randn(n, n_in)
    y = x[:, 0] * x[:, 1]
    return DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=shuffle)


def train_epoch(model, loader, optimizer, loss_fn, device):
    model.train()
    running = 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        running += loss.item()
    return running / len(loader)


@torch.no_grad()
def evaluate(model, loader, loss_fn, device):
    model.eval()
    total, n = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        total += loss_fn(model(x), y).item() * len(x)
        n += len(x)
    return total / n


if __name__ == "__main__":
    torch.manual_seed(7)
    device = "cuda"
    train_loader = make_loader(1024, 16, 128, True)
    val_loader = make_loader(512, 16, 128, False)
    model = MLPRegressor(16).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.MSELoss()
    for epoch in range(30):
        tr = train_epoch(model, train_loader, optimizer, loss_fn, device)
        va = evaluate(model, val_loader, loss_fn, device)
        if epoch % 10 == 0:
            print(f"epoch {epoch:3d} train {tr:.4f} val {va:.4f}")
