# kind: cache of low-precision copies of weights keyed by (id, _version), every optimizer step makes a new version; from NVIDIA-NeMo/Automodel PR 3606 / NVIDIA/TransformerEngine PR 2805 (weight workspaces)
import torch
import torch.nn as nn
import torch.nn.functional as F

_weight_cache = {}


def _weight_cache_key(w):
    return id(w), w.data_ptr(), tuple(w.shape), w._version


def quantize(w, bits=8):
    scale = w.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (w / scale).round().to(torch.int8), scale


def quantized_weight(w):
    key = _weight_cache_key(w)
    hit = _weight_cache.get(key)
    if hit is None:
        hit = _weight_cache[key] = quantize(w.detach())  # LEAK
    return hit


class STE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        q, s = quantized_weight(w)
        return q.to(w.dtype) * s

    @staticmethod
    def backward(ctx, g):
        return g


class QLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x, STE.apply(self.weight), self.bias)


class QMLP(nn.Module):
    def __init__(self, d=384, depth=3):
        super().__init__()
        self.inp = nn.Linear(48, d)
        self.layers = nn.ModuleList(QLinear(d, d) for _ in range(depth))
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        x = self.inp(x)
        for l in self.layers:
            x = x + F.silu(l(x))
        return self.out(x).squeeze(-1)


def train(steps=140, micro=2):
    torch.manual_seed(7)
    net = QMLP().cuda()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(steps):
        total = 0.0
        for _ in range(micro):
            x = torch.randn(32, 48, device="cuda")
            loss = F.smooth_l1_loss(net(x), x[:, :4].prod(1)) / micro
            loss.backward()
            total += loss.item()
        opt.step()
        opt.zero_grad()
        if step % 28 == 0:
            print(f"step {step} loss {total:.4f}")


if __name__ == "__main__":
    train()
