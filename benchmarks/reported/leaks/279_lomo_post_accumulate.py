# kind: optimizer fused into backward, post-accumulate hooks registered again in every step; in the manner of a GitHub issue for a LOMO reimplementation "backward slower and slower, then OOM"
import torch
import torch.nn as nn


class FusedBackward:
    def __init__(self, params, lr, clip=1.0):
        self.params = [p for p in params if p.requires_grad]
        self.lr, self.clip = lr, clip

    def make_hook(self, norms):
        def hook(p):
            if p.grad is None:
                return
            norms.append(p.grad.norm())
            scale = (self.clip / (norms[-1] + 1e-6)).clamp(max=1.0)
            p.data.add_(p.grad * scale, alpha=-self.lr)
            p.grad = None
        return hook

    def step(self, loss, inputs):
        norms = [inputs.float().norm()]
        stats = {"norms": norms, "inputs": inputs}

        def report(p):
            stats["last"] = p.shape
        hook = self.make_hook(norms)
        for p in self.params:
            p.register_post_accumulate_grad_hook(hook)  # ALSO
        self.params[0].register_post_accumulate_grad_hook(report)  # LEAK
        loss.backward()
        return stats


class Mixer(nn.Module):
    def __init__(self, n=32, d=64, depth=2):
        super().__init__()
        self.tok = nn.ModuleList(nn.Linear(n, n) for _ in range(depth))
        self.ch = nn.ModuleList(nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(depth))
        self.head = nn.Linear(d, 5)

    def forward(self, x):
        for t, c in zip(self.tok, self.ch):
            x = x + t(x.transpose(1, 2)).transpose(1, 2)
            x = x + c(x)
        return self.head(x.mean(1))


torch.manual_seed(0)
net = Mixer().cuda()
fused = FusedBackward(net.parameters(), lr=1e-2)
for step in range(80):
    batch = torch.randn(32, 32, 64, device="cuda")
    target = torch.randint(0, 5, (32,), device="cuda")
    loss = nn.functional.cross_entropy(net(batch), target)
    stats = fused.step(loss, batch)
    if step % 20 == 0:
        print(step, float(loss.detach()), stats["last"])
