# kind: straight-through quantizer hands its clipping mask from inside of a custom autograd Function to an observer that nobody empties; from quantization-aware training code and forum questions on custom Functions that grow (pytorch issues 5569 / 25340 discuss the same habit)
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Saturation:
    def __init__(self, name):
        self.name = name
        self.seen = []

    def note(self, inside):
        self.seen.append(inside)  # LEAK

    def rate(self, last=10):
        recent = self.seen[-last:]
        return 1 - sum(m.mean().item() for m in recent) / max(len(recent), 1)


class FakeQuant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, levels, observer):
        q = (x / scale).round()
        inside = ((q >= 0) & (q <= levels)).to(x.dtype)
        observer.note(inside)
        ctx.save_for_backward(inside)
        return q.clamp(0, levels) * scale

    @staticmethod
    def backward(ctx, grad):
        inside, = ctx.saved_tensors
        return grad * inside, None, None, None


class QuantReLU(nn.Module):
    def __init__(self, name, bits=4):
        super().__init__()
        self.levels = 2 ** bits - 1
        self.register_buffer("scale", torch.tensor(0.15))
        self.saturation = Saturation(name)

    def forward(self, x):
        x = torch.relu(x)
        if self.training:
            self.scale.lerp_(x.detach().quantile(0.99) / self.levels, 0.05)
        return FakeQuant.apply(x, self.scale, self.levels, self.saturation)


def build(classes=5):
    return nn.Sequential(
        nn.Conv1d(2, 16, 7, stride=4, padding=3), QuantReLU("q1"),
        nn.Conv1d(16, 24, 5, stride=2, padding=2), QuantReLU("q2"),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(96, classes),
    )


def fake_ecg(n, length=512, classes=5):
    y = torch.randint(classes, (n,))
    t = torch.linspace(0, 6.28, length)
    x = torch.stack([torch.stack([torch.sin((k + 1) * 3 * t), torch.cos((k + 1) * t)]) for k in y.tolist()])
    return TensorDataset(x + 0.5 * torch.randn_like(x), y)


device = "cuda"
torch.manual_seed(7)
train_loader = DataLoader(fake_ecg(320), batch_size=32, shuffle=True)
net = build().to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()

for epoch in range(9):
    hits = total = 0
    for x, y in train_loader:
        optimizer.zero_grad()
        out = net(x.to(device))
        loss = criterion(out, y.to(device))
        loss.backward()
        optimizer.step()
        hits += (out.argmax(1).cpu() == y).sum().item()
        total += len(y)
    rates = {m.saturation.name: round(m.saturation.rate(), 3) for m in net if isinstance(m, QuantReLU)}
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}  acc {hits / total:.3f}  clipped {rates}")
