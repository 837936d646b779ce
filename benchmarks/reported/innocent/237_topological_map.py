# kind: a patrolling robot keeps a topological map in a networkx graph, a node with a feature map for each place that is not near a known one, edges remember how well two places match; the second lap and all later ones find the places of the first; after lasuomela/PlaceNav issue 1 and Lifelong Topological Visual Navigation (arXiv 2110.08488)
"""Place memory of a night watchman.

https://github.com/lasuomela/PlaceNav/issues/1 (building topological maps),
https://arxiv.org/abs/2110.08488 (Lifelong Topological Visual Navigation)
"""
import math
import random
import time

import networkx as nx
import torch
import torch.nn as nn
import torch.nn.functional as F


class PlaceEncoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, stride=2, padding=1))

    def forward(self, view):
        return F.normalize(self.net(view), dim=1)


class TopologicalMap:
    def __init__(self, spacing=1.0):
        self.spacing = spacing
        self.graph = nx.DiGraph()
        self.here = None

    def nearest(self, pose):
        best = min(self.graph.nodes(data="pose"), key=lambda n: math.dist(n[1], pose), default=(None, None))
        return best if best[0] is None or math.dist(best[1], pose) < self.spacing else (None, None)

    def visit(self, pose, features):
        node, _ = self.nearest(pose)
        if node is None:
            node = self.graph.number_of_nodes()
            self.graph.add_node(node, pose=pose, features=features, visits=0)
        data = self.graph.nodes[node]
        data["visits"] += 1
        data["features"] = F.normalize(data["features"].lerp(features, 1 / data["visits"]), dim=1)
        if self.here is not None and self.here != node:
            match = torch.einsum("bchw,bchw->bhw", self.graph.nodes[self.here]["features"], features)
            self.graph.add_edge(self.here, node, match=match, length=math.dist(self.graph.nodes[self.here]["pose"], pose))
        self.here = node
        return node

    def route(self, source, target):
        return nx.shortest_path(self.graph, source, target, weight="length")


class Patrol:
    """An eight-shaped corridor, walked with a little sway."""

    def __init__(self, steps_per_lap=110, size=13.0, sway=0.12, seed=1):
        self.n, self.size, self.sway = steps_per_lap, size, sway
        self.rng, self.g = random.Random(seed), torch.Generator().manual_seed(seed)
        self.walls = torch.rand(3, 64, 512, generator=self.g)

    def walk(self, laps):
        for t in range(laps * self.n):
            phase = 2 * math.pi * t / self.n
            x = self.size * math.sin(phase) + self.rng.gauss(0, self.sway)
            y = 0.5 * self.size * math.sin(2 * phase) + self.rng.gauss(0, self.sway)
            left = int(448 * (t % self.n) / self.n)
            view = self.walls[:, :, left:left + 64] + 0.05 * torch.randn(3, 64, 64, generator=self.g)
            time.sleep(0.01)
            yield t, (x, y), view[None]


@torch.no_grad()
def main(laps=3):
    torch.manual_seed(0)
    encoder, places = PlaceEncoder().to("cuda").eval(), TopologicalMap()
    patrol, alarms = Patrol(), 0
    for t, pose, view in patrol.walk(laps):
        features = encoder(view.to("cuda"))
        node = places.visit(pose, features)
        expected = places.graph.nodes[node]["features"]
        alarms += (expected * features).sum(1).mean().item() < -0.5
        if t % 30 == 0:
            print(f"{t}: at node {node} of {len(places.graph)}, {places.graph.number_of_edges()} edges, {alarms} alarms")
    print("way back:", places.route(places.here, 0))


if __name__ == "__main__":
    main()
