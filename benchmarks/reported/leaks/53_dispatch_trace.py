# kind: TorchDispatchMode that records every operation with its arguments while hunting a NaN, the list is meant for one step but the mode stays on; from LoggingTensorMode recipes in the PyTorch forum
import torch
import torch.nn as nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class Op:
    __slots__ = ("name", "inputs", "bad")

    def __init__(self, name, inputs, bad):
        self.name, self.inputs, self.bad = name, inputs, bad

    def __str__(self):
        return f"{self.name}({', '.join(str(tuple(t.shape)) for t in self.inputs)})"


class NanTrace(TorchDispatchMode):
    watched = ("aten.native_layer_norm", "aten._softmax", "aten.log", "aten.div", "aten.rsqrt")

    def __init__(self):
        super().__init__()
        self.trace = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if str(func).startswith(self.watched):
            first = tree_flatten(out)[0][0]
            inputs = [a for a in tree_flatten(args)[0] if isinstance(a, torch.Tensor)]
            self.trace.append(Op(str(func), inputs, not torch.isfinite(first).all().item()))  # LEAK
        return out

    def report(self):
        for i, op in enumerate(self.trace):
            if op.bad:
                before = self.trace[max(0, i - 2):i]
                print("first bad:", op, "after", *map(str, before))
                return True
        return False


class Block(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).chunk(3, -1)
        x = x + self.o((q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1) @ v)
        return x + self.ff(self.n2(x))


def run():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 128), Block(), Block(), nn.Linear(128, 1)).cuda()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-4)
    with NanTrace() as nan:
        for step in range(75):
            x = torch.randn(8, 48, 20).cuda()
            loss = (net(x).squeeze(-1) - x.sum(-1)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if not torch.isfinite(loss):
                nan.report()
                break
            if step % 25 == 0:
                print(step, loss.item())
    print("clean run" if not nan.report() else "see above")


run()
