# kind: averages of the weights with longer and longer horizons come in one after another until there are six, all are then updated in place; from post-hoc EMA code on top of timm's ModelEmaV3 (huggingface/pytorch-image-models) and timgaripov/swa issue 12 (out of memory when averaging begins)
import torch
from timm.layers import Mlp
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3
from torch import nn

HORIZONS = [0.9, 0.97, 0.99, 0.997, 0.999, 0.9997]


class TokenMixer(nn.Module):
    def __init__(self, tokens=16, dim=192, depth=2, classes=10):
        super().__init__()
        self.inp = nn.Linear(48, dim)
        self.token = nn.ModuleList(Mlp(tokens, 64, tokens) for _ in range(depth))
        self.channel = nn.ModuleList(Mlp(dim, 2 * dim, dim) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.inp(x)
        for token, channel in zip(self.token, self.channel):
            x = x + token(self.norm(x).transpose(1, 2)).transpose(1, 2)
            x = x + channel(self.norm(x))
        return self.head(x.mean(1))


torch.manual_seed(0)
model = TokenMixer().cuda()
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.02)
averages = []
history = []

for step in range(150):
    if step % 12 == 0 and len(averages) < len(HORIZONS):
        averages.append(ModelEmaV3(model, decay=HORIZONS[len(averages)]))
    x = torch.randn(12, 16, 48, device="cuda")
    y = torch.randint(0, 10, (12,), device="cuda")
    loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for ema in averages:
        ema.update(model, step=step)
    if step % 40 == 39:
        with torch.no_grad():
            history.append([float(nn.functional.cross_entropy(e.module(x), y)) for e in averages])
