# kind: feature tiles of a map viewer cached with a priority of frequency times cost over size above a rising clock (GreedyDual-Size-Frequency), a heap gives the cheapest one to evict, the budget in bytes is reached after a while; after tile servers and web caches
import heapq
import itertools
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda")
BUDGET = 256 * 2 ** 20
TILE_PX = {0: 192, 1: 128, 2: 96, 3: 64}


class GreedyDual:
    def __init__(self, budget):
        self.budget = budget
        self.entries = {}
        self.heap = []
        self.clock = 0.0
        self.bytes = 0
        self.ticket = itertools.count()
        self.hits = self.misses = self.evicted = 0

    def push(self, key):
        entry = self.entries[key]
        entry["priority"] = self.clock + entry["uses"] * entry["cost"] / entry["bytes"]
        entry["ticket"] = next(self.ticket)
        heapq.heappush(self.heap, (entry["priority"], entry["ticket"], key))

    def lookup(self, key):
        entry = self.entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        entry["uses"] += 1
        self.push(key)
        return entry["value"]

    def insert(self, key, value, cost):
        size = value.numel() * value.element_size()
        while self.bytes + size > self.budget:
            self.evict()
        self.entries[key] = {"value": value, "cost": cost, "bytes": size, "uses": 1}
        self.bytes += size
        self.push(key)

    def evict(self):
        while True:
            priority, ticket, key = heapq.heappop(self.heap)
            entry = self.entries.get(key)
            if entry is not None and entry["ticket"] == ticket:
                break
        self.clock = priority
        self.bytes -= entry["bytes"]
        self.evicted += 1
        del self.entries[key]


class TileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 16, 3, padding=1)
        self.b = nn.Conv2d(16, 24, 3, padding=1)

    def forward(self, x, passes):
        h = self.b(F.relu(self.a(x)))
        for _ in range(passes):
            h = h + 0.1 * F.avg_pool2d(h, 3, stride=1, padding=1)
        return h


def read_tile(key):
    zoom, x, y = key
    gen = torch.Generator().manual_seed(zoom * 10007 + x * 101 + y)
    return torch.rand(1, 4, TILE_PX[zoom], TILE_PX[zoom], generator=gen).to(device)


def visitor(seed):
    rng = random.Random(seed)
    popular = [(rng.random() * 12, rng.random() * 12) for _ in range(40)]
    while True:
        cx, cy = popular[min(int(rng.paretovariate(0.7)) - 1, 39)]
        zoom = rng.choice([0, 1, 1, 2, 2, 3])
        x, y = int(cx + rng.gauss(0, 0.8)), int(cy + rng.gauss(0, 0.8))
        yield [(zoom, x + dx, y + dy) for dx in (0, 1) for dy in (0, 1)]


@torch.no_grad()
def main():
    torch.manual_seed(21)
    net, cache = TileNet().to(device).eval(), GreedyDual(BUDGET)
    served = 0.0
    for view, keys in zip(range(260), visitor(21)):
        tiles = []
        for key in keys:
            features = cache.lookup(key)
            if features is None:
                passes = 1 + key[0]
                features = net(read_tile(key), passes)
                cache.insert(key, features, cost=math.sqrt(passes) * TILE_PX[key[0]] ** 2)
            tiles.append(features)
        rows = [torch.cat(tiles[i:i + 2], dim=3) for i in (0, 2)]
        served += torch.cat(rows, dim=2).amax(1).mean().item()
        if view % 26 == 0:
            print(f"view {view}: {cache.bytes >> 20} MiB in {len(cache.entries)} tiles, hits {cache.hits}, "
                  f"misses {cache.misses}, evicted {cache.evicted}")
    print(round(served / 260, 4))


if __name__ == "__main__":
    main()
