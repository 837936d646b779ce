# kind: every particle of a filter points to the particle that it came from, lines that die out in the resampling take their states along, and where all lines have met the path is written out and cut off; from particle smoother code (path storage, nchopin/particles) and questions about its memory
from collections import Counter

import torch
import torch.nn as nn


class Ancestor:
    __slots__ = ("parent", "state", "time")

    def __init__(self, parent, state, time):
        self.parent, self.state, self.time = parent, state, time


class Genealogy:
    """Paths of all living particles, shared as far back as they are the same."""

    def __init__(self, states):
        self.root = Ancestor(None, None, -1)
        self.leaves = [Ancestor(self.root, s, 0) for s in states]

    def extend(self, parents, states, time):
        self.leaves = [Ancestor(self.leaves[p], s, time) for p, s in zip(parents, states)]

    def _common(self):
        level = {id(n): n for n in self.leaves}
        while len(level) > 1:
            level = {id(n.parent): n.parent for n in level.values()}
        return next(iter(level.values()))

    def settled(self):
        """The part of the path on which all particles agree, oldest first; it is given up here."""
        node, path = self._common(), []
        top = node
        while node is not self.root:
            path.append(node)
            node = node.parent
        top.parent = None
        self.root = top
        return path[::-1]


class Occupancy(nn.Module):
    """Local map of a robot from its map one step before and a range image."""

    def __init__(self, side=96):
        super().__init__()
        self.side = side
        self.mix = nn.Conv2d(2, 1, 5, padding=2)

    def forward(self, maps, scan):
        scan = scan.expand(len(maps), -1, -1)
        return torch.sigmoid(2 * maps - 1 + self.mix(torch.stack([maps, scan], 1))[:, 0])


def systematic(weights, generator):
    n = len(weights)
    u = (torch.rand(1, generator=generator) + torch.arange(n)) / n
    return torch.searchsorted(weights.cumsum(0), u).clamp(max=n - 1).tolist()


@torch.no_grad()
def slam(steps, n=32):
    generator = torch.Generator().manual_seed(4)
    model = Occupancy().to("cuda").eval()
    maps = torch.rand(n, model.side, model.side).to("cuda")
    tree = Genealogy([m.clone() for m in maps])
    lags, written = Counter(), 0.0
    for t in range(1, steps + 1):
        scan = torch.rand(1, model.side, model.side, generator=generator).to("cuda")
        maps = model(maps, scan) + 0.05 * torch.randn_like(maps)
        loglik = -(maps - scan).square().sum((1, 2))
        weights = (loglik / loglik.std()).softmax(0).cpu()
        parents = systematic(weights, generator)
        maps = maps[parents]
        tree.extend(parents, [m.clone() for m in maps], t)
        for node in tree.settled():
            written += node.state.mean().item()
            lags[t - node.time] += 1
        if t % 25 == 0:
            print(f"{t}: {lags.total()} steps are settled, longest lag {max(lags, default=None)}")
    return written


if __name__ == "__main__":
    torch.manual_seed(0)
    slam(150)
