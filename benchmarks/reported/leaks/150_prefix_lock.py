# kind: prefix cache nodes are locked while a request uses them, aborted requests return before the unlock and their nodes can never be evicted; after Avarok-Cybersecurity/atlas PR 373
import time

import torch
from torch import nn

torch.manual_seed(14)
BUDGET = 12 * 2 ** 20


class Node:
    def __init__(self, key, kv, parent):
        self.key, self.kv, self.parent = key, kv, parent
        self.children = {}
        self.lock_ref = 0
        self.last_access = time.monotonic()


class PrefixCache:
    def __init__(self, budget):
        self.root = Node((), None, None)
        self.budget = budget
        self.used = 0

    def match(self, blocks):
        node, depth = self.root, 0
        while depth < len(blocks) and blocks[depth] in node.children:
            node = node.children[blocks[depth]]
            node.last_access = time.monotonic()
            depth += 1
        return node, depth

    def insert(self, node, key, kv):
        child = Node(key, kv, node)
        node.children[key] = child  # LEAK
        self.used += kv.numel() * kv.element_size()
        return child

    def lock(self, node, delta):
        while node is not self.root:
            node.lock_ref += delta
            node = node.parent

    def _leaves(self, node):
        for child in node.children.values():
            if child.children:
                yield from self._leaves(child)
            else:
                yield child

    def evict(self):
        while self.used > self.budget:
            leaves = [n for n in self._leaves(self.root) if n.lock_ref == 0]
            if not leaves:
                break
            oldest = min(leaves, key=lambda n: n.last_access)
            del oldest.parent.children[oldest.key]
            self.used -= oldest.kv.numel() * oldest.kv.element_size()


class Prefiller(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.embed = nn.Embedding(256, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 768), nn.GELU(), nn.Linear(768, dim))
        self.kv = nn.Linear(dim, 2 * dim)

    @torch.inference_mode()
    def forward(self, block):
        ids = torch.tensor(block, device="cuda").repeat(64)
        x = self.embed(ids)
        return self.kv(x + self.mlp(x)).unflatten(-1, (2, -1))


class Engine:
    def __init__(self):
        self.model = Prefiller().cuda()
        self.cache = PrefixCache(BUDGET)

    def run(self, prompt, aborted):
        blocks = [tuple(prompt[i:i + 16]) for i in range(0, len(prompt), 16)]
        node, depth = self.cache.match(blocks)
        for block in blocks[depth:]:
            node = self.cache.insert(node, block, self.model(block))
        self.cache.lock(node, +1)  # ALSO
        self.cache.evict()
        if aborted():
            return None
        score = node.kv.float().mean().item()
        self.cache.lock(node, -1)
        return score


engine = Engine()
gen = torch.Generator().manual_seed(4)
system = torch.randint(0, 256, (32,), generator=gen).tolist()
answered = aborts = 0
for request in range(300):
    user = torch.randint(0, 256, (32,), generator=gen).tolist()
    hang_up = float(torch.rand((), generator=gen)) < 0.3
    if engine.run(system + user, lambda: hang_up) is None:
        aborts += 1
    else:
        answered += 1
print(f"{answered} answered, {aborts} aborted, root has {len(engine.cache.root.children)} children")
