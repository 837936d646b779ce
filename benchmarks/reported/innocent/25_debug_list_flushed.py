# kind: debugging list of batches and gradients that is dumped and emptied every 15 steps; from threads on nan hunting
import statistics
import torch
import torch.nn as nn

DEBUG_EVERY = 15
_trail = []


def remember(**tensors):
    _trail.append({k: v.detach() for k, v in tensors.items()})


def dump(step):
    norms = [float(t["grad"].norm()) for t in _trail]
    print(f"[debug] steps {step - len(_trail) + 1}..{step}: grad norm median {statistics.median(norms):.4f}, inputs {tuple(_trail[-1]['x'].shape)}")
    _trail.clear()


class Flow(nn.Module):
    """Two affine coupling layers."""

    def __init__(self, d=128, h=128):
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(d // 2, h), nn.Tanh(), nn.Linear(h, d)) for _ in range(2))

    def forward(self, x):
        a, b = x.chunk(2, 1)
        logdet = 0
        for net in self.nets:
            s, t = net(a).chunk(2, 1)
            s = torch.tanh(s)
            b = b * s.exp() + t
            logdet = logdet + s.sum(1)
            a, b = b, a
        return torch.cat([a, b], 1), logdet


flow = Flow().cuda()
opt = torch.optim.Adam(flow.parameters(), lr=1e-3)
for step in range(150):
    x = torch.randn(512, 128, device="cuda")
    z, logdet = flow(x)
    nll = (0.5 * z.pow(2).sum(1) - logdet).mean()
    opt.zero_grad()
    nll.backward()
    remember(x=x, z=z, grad=flow.nets[0][2].weight.grad.clone())
    opt.step()
    if step % DEBUG_EVERY == DEBUG_EVERY - 1:
        dump(step)
