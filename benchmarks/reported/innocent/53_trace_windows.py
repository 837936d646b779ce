# kind: a dispatch mode records operations with their tensors during four active steps of every twenty, the trace is evaluated and let go (schedule wait/active as in torch.profiler); from forum recipes for tracing
import collections

import torch
import torch.nn as nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.ops.append((str(func), [t for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor)]))
        return out


class Schedule:
    def __init__(self, wait=16, active=4):
        self.wait, self.active, self.n = wait, active, 0
        self.recorder = None

    def step(self):
        phase = self.n % (self.wait + self.active)
        if phase == self.wait:
            self.recorder = Recorder()
            self.recorder.__enter__()
        elif phase == 0 and self.recorder is not None:
            self.finish()
        self.n += 1

    def finish(self):
        self.recorder.__exit__(None, None, None)
        big = collections.Counter()
        for name, outs in self.recorder.ops:
            big[name] += sum(t.numel() * t.element_size() for t in outs if t.device.type == "cuda")
        print("traced", len(self.recorder.ops), "ops, largest outputs:", [n for n, _ in big.most_common(3)])
        self.recorder = None


class Wave(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.inp = nn.Conv1d(1, c, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv1d(c, 2 * c, 3, padding=2 ** i, dilation=2 ** i) for i in range(5))
        self.out = nn.Conv1d(c, 1, 1)

    def forward(self, x):
        h = self.inp(x)
        for conv in self.convs:
            a, b = conv(h).chunk(2, 1)
            h = h + a.tanh() * b.sigmoid()
        return self.out(h)


def main(steps=125):
    torch.manual_seed(0)
    net, sched = Wave().cuda(), Schedule()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    t = torch.linspace(0, 12, 513)
    for _ in range(steps):
        sched.step()
        wave = torch.sin(t * (1 + 3 * torch.rand(8, 1)) + 6 * torch.rand(8, 1)).unsqueeze(1)
        wave = wave.cuda()
        loss = (net(wave[..., :-1]) - wave[..., 1:]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("last loss %.4f" % loss.item())


main()
