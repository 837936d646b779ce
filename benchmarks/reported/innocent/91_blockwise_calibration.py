# kind: calibration of a quantized model block by block, hooks gather inputs and second moments of a block and go when its weights are rounded, then the smaller model is used; from ModelCloud/GPTQModel issue 2805 (memory increases during quantization) and PR 2981
import functools

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(dim, 2 * dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


class Int8Linear(nn.Module):
    def __init__(self, q, scale, bias):
        super().__init__()
        self.register_buffer("q", q)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    def forward(self, x):
        return nn.functional.linear(x, self.q.to(x.dtype) * self.scale, self.bias)


class Catcher:
    def __init__(self):
        self.inputs, self.moment, self.count = [], None, 0

    def hook(self, module, args, output):
        x = args[0].detach().flatten(0, 1)
        self.inputs.append(x[::4].clone())
        m = x.t() @ x
        self.moment = m if self.moment is None else self.moment.add_(m)
        self.count += len(x)


def best_scale(weight, catcher, grid=6):
    x = torch.cat(catcher.inputs)[:256]
    importance = catcher.moment.diagonal() / catcher.count
    exact = x @ weight.t()
    winner = None
    for k in range(grid):
        scale = weight.abs().amax(1, keepdim=True) * (1 - 0.05 * k) / 127 + 1e-8
        q = (weight / scale).round().clamp(-127, 127)
        error = float((((q * scale) - weight).square() * importance).sum() + (x @ (q * scale).t() - exact).square().mean())
        if winner is None or error < winner[0]:
            winner = (error, q.to(torch.int8), scale)
    return winner[1:]


@torch.no_grad()
def quantize(blocks, samples):
    for block in blocks:
        linears = [(n, m) for n, m in block.named_children() if isinstance(m, nn.Linear)]
        catchers = {n: Catcher() for n, _ in linears}
        handles = [m.register_forward_hook(catchers[n].hook) for n, m in linears]
        for s in samples:
            block(s)
        for h in handles:
            h.remove()
        for name, linear in linears:
            q, scale = best_scale(linear.weight, catchers.pop(name))
            setattr(block, name, Int8Linear(q, scale, linear.bias.detach()))
        samples = [block(s) for s in samples]
    return blocks


def main():
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block(192) for _ in range(5)).cuda()
    quantize(blocks, [torch.randn(2, 96, 192, device="cuda") for _ in range(16)])
    run = functools.partial(functools.reduce, lambda x, b: b(x), blocks)
    with torch.no_grad():
        for _ in range(60):
            run(torch.randn(2, 96, 192, device="cuda"))


if __name__ == "__main__":
    main()
