# kind: least recently used cache of node outputs with a budget in bytes that is measured by numel() * element_size(), it fills during the first prompts and then evicts; from caching in node graph executors (the right measure)
import hashlib
import json
from collections import OrderedDict

import torch
import torch.nn as nn
import torch.nn.functional as F


def nbytes(value):
    if torch.is_tensor(value):
        return value.numel() * value.element_size()
    if isinstance(value, (list, tuple)):
        return sum(nbytes(v) for v in value)
    return 0


class OutputCache:
    def __init__(self, budget):
        self.budget, self.used = budget, 0
        self._entries = OrderedDict()

    def get(self, key):
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key, value):
        size = nbytes(value)
        if size > self.budget:
            return
        while self.used + size > self.budget:
            _, old = self._entries.popitem(last=False)
            self.used -= nbytes(old)
        self._entries[key] = value
        self.used += size


def empty_latent(size, seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(1, 4, size // 8, size // 8, generator=g).to("cuda"),)


class Sampler:
    def __init__(self):
        self.net = nn.Conv2d(4, 4, 3, padding=1).to("cuda").requires_grad_(False)

    def __call__(self, latent, steps, cfg):
        for _ in range(steps):
            latent = latent - 0.1 * cfg * torch.tanh(self.net(latent))
        return (latent,)


class Decode:
    def __init__(self):
        self.net = nn.Conv2d(4, 3, 3, padding=1).to("cuda").requires_grad_(False)

    def __call__(self, latent):
        return (F.interpolate(self.net(latent), scale_factor=8).clamp(-1, 1),)


class Executor:
    def __init__(self, budget_mb):
        self.cache, self.hits = OutputCache(budget_mb * 2**20), 0
        self.nodes = {"EmptyLatent": empty_latent, "Sampler": Sampler(), "Decode": Decode()}

    def _signature(self, prompt, node_id):
        spec = prompt[node_id]
        inputs = {k: self._signature(prompt, v[0]) if isinstance(v, list) else v for k, v in spec["inputs"].items()}
        return hashlib.sha1(json.dumps([spec["class"], inputs], sort_keys=True).encode()).hexdigest()

    def evaluate(self, prompt, node_id):
        key = self._signature(prompt, node_id)
        out = self.cache.get(key)
        if out is None:
            spec = prompt[node_id]
            kwargs = {k: self.evaluate(prompt, v[0])[v[1]] if isinstance(v, list) else v
                      for k, v in spec["inputs"].items()}
            out = self.nodes[spec["class"]](**kwargs)
            self.cache.put(key, out)
        else:
            self.hits += 1
        return out

    @torch.no_grad()
    def execute(self, prompt):
        return self.evaluate(prompt, "save")[0].cpu()


def workflow(seed, cfg):
    return {
        "latent": {"class": "EmptyLatent", "inputs": {"size": 256, "seed": seed}},
        "sample": {"class": "Sampler", "inputs": {"latent": ["latent", 0], "steps": 4, "cfg": cfg}},
        "save": {"class": "Decode", "inputs": {"latent": ["sample", 0]}},
    }


def main():
    ex = Executor(budget_mb=32)
    for i in range(160):
        image = ex.execute(workflow(seed=i // 2, cfg=[1.0, 2.5][i % 2]))
        if i % 40 == 0:
            print(f"prompt {i}: mean {image.mean():+.3f}, hits {ex.hits}, {ex.cache.used / 2**20:.1f} MiB cached")


main()
