# kind: an adapter is loaded when a tenant first asks and then stays, there is a fixed number of tenants; from multi-LoRA serving questions
import random
import torch
import torch.nn as nn

TENANTS = ["acme", "birch", "copper", "delta", "ember", "fjord", "gable", "heron", "iris", "juno", "kelp", "lumen"]


class Adapter(nn.Module):
    def __init__(self, dim, rank):
        super().__init__()
        self.down, self.up = nn.Linear(dim, rank, bias=False), nn.Linear(rank, dim, bias=False)

    def forward(self, x):
        return self.up(self.down(x))


class Backbone(nn.Module):
    def __init__(self, dim=256, depth=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU()) for _ in range(depth))

    def forward(self, x, adapters):
        for layer, a in zip(self.layers, adapters):
            h = layer(x)
            x = x + h + a(h)
        return x


class MultiTenant:
    def __init__(self, dim=256, depth=4, rank=48):
        self.base = Backbone(dim, depth).cuda().eval()
        self.make = lambda: nn.ModuleList(Adapter(dim, rank) for _ in range(depth)).cuda().eval()
        self.adapters = nn.ModuleDict()
        self.loads = 0

    def adapter_for(self, tenant):
        if tenant not in self.adapters:
            self.adapters[tenant] = self.make()
            self.loads += 1
        return self.adapters[tenant]

    @torch.inference_mode()
    def serve(self, tenant, x):
        return self.base(x.cuda(), self.adapter_for(tenant)).mean(1).cpu()


def requests(n, seed=2):
    rng = random.Random(seed)
    for i in range(n):
        # new customers sign up one by one during the morning
        known = TENANTS[:2 + i // 7]
        yield rng.choice(known) if i % 7 else known[-1]


srv = MultiTenant()
for i, tenant in enumerate(requests(220)):
    srv.serve(tenant, torch.randn(4, 16, 256))
    if i % 40 == 0:
        print("request", i, tenant, "loads", srv.loads)
