# kind: forward hooks push activations which only the backward hook pops, so validation without backward leaks; from an Opacus issue
import torch
import torch.nn as nn


class GradSampleModule(nn.Module):
    """Per-sample gradient norms: stack of inputs filled in forward, emptied in backward."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.norms = None
        for m in module.modules():
            if isinstance(m, nn.Linear):
                m.activations = []
                m.register_forward_hook(self.capture_activations)
                m.register_full_backward_hook(self.capture_backprops)

    def capture_activations(self, mod, inp, out):
        if not self.training:
            return
        mod.activations.append(inp[0].detach())  # LEAK

    def capture_backprops(self, mod, grad_in, grad_out):
        a = mod.activations.pop()
        g = grad_out[0].detach()
        n = a.pow(2).sum(1) * g.pow(2).sum(1)
        self.norms = n if self.norms is None else self.norms + n

    def forward(self, x):
        return self.module(x)


def batches(n, device, bs=128):
    for _ in range(n):
        x = torch.randn(bs, 128, device=device)
        yield x, (x.sum(1) > 0).long()


def train_epoch(model, opt, device):
    crit = nn.CrossEntropyLoss()
    for x, y in batches(10, device):
        opt.zero_grad()
        model.norms = None
        loss = crit(model(x), y)
        loss.backward()
        clip = (1.0 / (model.norms.sqrt().mean() + 1e-6)).clamp(max=1.0)
        for p in model.parameters():
            p.grad.mul_(clip)
        opt.step()
    return loss.item()


def validate(model, device):
    hit = n = 0
    with torch.no_grad():
        for x, y in batches(3, device, bs=512):
            hit += (model(x).argmax(1) == y).sum().item()
            n += y.numel()
    return hit / n


device = torch.device("cuda")
net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
model = GradSampleModule(net).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(22):
    l = train_epoch(model, opt, device)
    acc = validate(model, device)
    print(f"epoch {epoch:2d} loss {l:.3f} val acc {acc:.3f}")
