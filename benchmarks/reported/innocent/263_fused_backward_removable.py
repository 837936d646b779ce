# kind: optimizer fused into backward, hooks registered in every step; why it is none: each step removes its handles before it ends
from contextlib import contextmanager

import torch
import torch.nn as nn


@contextmanager
def updates_in_backward(params, lr, context):
    handles = []

    def apply(p):
        p.data.add_(p.grad / (1.0 + context["noise"].abs().mean()), alpha=-lr)
        p.grad = None
    for p in params:
        handles.append(p.register_post_accumulate_grad_hook(apply))
    try:
        yield
    finally:
        while handles:
            handles.pop().remove()


class ConvMixer(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.stem = nn.Conv2d(3, d, 4, 4)
        self.mix = nn.ModuleList(nn.Sequential(nn.Conv2d(d, d, 5, padding=2, groups=d), nn.GELU(), nn.Conv2d(d, d, 1))
                                 for _ in range(2))
        self.head = nn.Linear(d, 6)

    def forward(self, x):
        x = self.stem(x)
        for m in self.mix:
            x = x + m(x)
        return self.head(x.mean((2, 3)))


torch.manual_seed(0)
net = ConvMixer().cuda()
for step in range(100):
    x, y = torch.randn(16, 3, 32, 32, device="cuda"), torch.randint(0, 6, (16,), device="cuda")
    loss = nn.functional.cross_entropy(net(x), y)
    with updates_in_backward(net.parameters(), 1e-2, {"noise": torch.randn_like(x)}):
        loss.backward()
print(loss.item())
