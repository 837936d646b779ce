# kind: home-made plateau scheduler keeps the validation losses it is stepped with, and those still carry the graphs of the validation passes (no no_grad); in the manner of "ReduceLROnPlateau scheduler.step(val_loss) memory" posts
import torch
import torch.nn as nn


class PlateauWithWarmup:
    """ReduceLROnPlateau with a warm-up and a relative, windowed threshold."""

    def __init__(self, optimizer, factor=0.5, patience=10, warmup=5, window=4, min_lr=1e-6):
        self.optimizer = optimizer
        self.factor = factor
        self.patience = patience
        self.warmup = warmup
        self.window = window
        self.min_lr = min_lr
        self.base_lrs = [g["lr"] for g in optimizer.param_groups]
        self.history = []
        self.since_change = 0

    def _mean(self, values):
        return float(sum(float(v) for v in values)) / max(len(values), 1)

    def step(self, metric):
        self.history.append(metric)  # LEAK
        epoch = len(self.history)
        if epoch <= self.warmup:
            for g, lr in zip(self.optimizer.param_groups, self.base_lrs):
                g["lr"] = lr * epoch / self.warmup
            return
        self.since_change += 1
        if self.since_change < self.patience:
            return
        recent = self._mean(self.history[-self.window:])
        older = self._mean(self.history[-2 * self.window:-self.window])
        if recent > 0.999 * older:
            for g in self.optimizer.param_groups:
                g["lr"] = max(g["lr"] * self.factor, self.min_lr)
        self.since_change = 0


class TemporalRegressor(nn.Module):
    def __init__(self, n_features=12, hidden=48, horizon=8):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(n_features, hidden, 5, padding=2), nn.GELU(),
            nn.Conv1d(hidden, hidden, 5, padding=2), nn.GELU(),
        )
        self.head = nn.Linear(hidden, horizon)

    def forward(self, x):
        return self.head(self.conv(x).mean(-1))


def batches(n, batch_size, device, length=64):
    for _ in range(n):
        x = torch.randn(batch_size, 12, length, device=device)
        y = x[:, :8].mean(-1)
        yield x, y


def validate(model, criterion, device):
    model.eval()
    total = 0.0
    count = 0
    for x, y in batches(2, 16, device):
        total = total + criterion(model(x), y)  # ALSO
        count += 1
    return total / count


def fit(epochs=80):
    device = torch.device("cuda")
    torch.manual_seed(1)
    model = TemporalRegressor().to(device)
    criterion = nn.SmoothL1Loss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = PlateauWithWarmup(optimizer)
    for epoch in range(1, epochs + 1):
        model.train()
        train_loss = 0.0
        for x, y in batches(4, 16, device):
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            train_loss += loss.item()
        val_loss = validate(model, criterion, device)  # ALSO
        scheduler.step(val_loss)  # ALSO
        if epoch % 20 == 0:
            print(f"epoch {epoch} train {train_loss / 4:.4f} val {val_loss.item():.4f} "
                  f"lr {optimizer.param_groups[0]['lr']:.2e}")


if __name__ == "__main__":
    fit()
