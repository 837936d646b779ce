# kind: int8 copies of adapter weights are cached in a WeakTensorKeyDictionary under the weight, the copies do not refer to it, so they go when the adapter is evicted; tenants arrive one by one and eight adapters fit; after python/cpython issue 88846 and pytorch/pytorch PR 90825 (as it is meant to be used)
"""Adapters for many tenants, multiplied in int8.

https://github.com/pytorch/pytorch/pull/90825 (rework of the weak dictionaries of tensors),
https://github.com/python/cpython/issues/88846
"""
import random
import time
from collections import OrderedDict

import torch
import torch.nn as nn
from torch.utils.weak import WeakTensorKeyDictionary


class Int8Cache:
    def __init__(self):
        self.entries = WeakTensorKeyDictionary()

    def __call__(self, weight):
        if weight not in self.entries:
            scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
            self.entries[weight] = (weight / scale).round().to(torch.int8), scale
        return self.entries[weight]


class Adapter:
    def __init__(self, tenant, dim, rank, layers, device):
        g = torch.Generator().manual_seed(tenant)
        self.down = [torch.randn(rank, dim, generator=g).div(dim**0.5).to(device) for _ in range(layers)]
        self.up = [torch.randn(dim, rank, generator=g).mul(0.01).to(device) for _ in range(layers)]


class AdapterStore:
    """The adapters that were used last."""

    def __init__(self, capacity, load):
        self.capacity, self.load = capacity, load
        self.adapters = OrderedDict()
        self.loads = 0

    def get(self, tenant):
        if tenant in self.adapters:
            self.adapters.move_to_end(tenant)
            return self.adapters[tenant]
        if len(self.adapters) == self.capacity:
            self.adapters.popitem(last=False)
        self.loads += 1
        self.adapters[tenant] = self.load(tenant)
        return self.adapters[tenant]


class Ranker(nn.Module):
    def __init__(self, quantized, items=800, dim=512, layers=3):
        super().__init__()
        self.quantized = quantized
        self.items = nn.Embedding(items, dim)
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        self.score = nn.Linear(dim, items)

    def _multiply(self, x, weight):
        q, scale = self.quantized(weight)
        return (x @ q.t().to(x.dtype)) * scale[:, 0]

    def forward(self, history, adapter):
        x = self.items(history).mean(1)
        for layer, down, up in zip(self.layers, adapter.down, adapter.up):
            x = x + torch.relu(layer(x) + self._multiply(self._multiply(x, down), up))
        return self.score(x)


class Traffic:
    """Tenants sign up during the first part of the day; most requests come from those who did last."""

    def __init__(self, every=14, seed=3):
        self.rng, self.every = random.Random(seed), every

    def request(self, t):
        known = 1 + t // self.every
        tenant = max(0, known - 1 - min(int(self.rng.expovariate(0.5)), 9))
        return tenant, torch.randint(0, 800, (8, self.rng.randint(5, 30)))


def main(requests=380):
    torch.manual_seed(0)
    quantized = Int8Cache()
    model = Ranker(quantized).to("cuda").eval()
    store = AdapterStore(8, lambda tenant: Adapter(tenant, dim=512, rank=48, layers=3, device="cuda"))
    traffic = Traffic()
    for t in range(requests):
        time.sleep(0.008)
        tenant, history = traffic.request(t)
        with torch.no_grad():
            best = model(history.to("cuda"), store.get(tenant)).argmax(-1)
        if t % 50 == 0:
            print(f"request {t}: tenant {tenant}, item {best[0].item()}, {len(quantized.entries)} int8 copies, {store.loads} loads")


if __name__ == "__main__":
    main()
