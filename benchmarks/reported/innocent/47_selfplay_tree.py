# kind: search tree of a self-play game grows with each move, the played child becomes the root without its parent and the tree is gone when the game ends; from AlphaZero / muzero-general questions about memory in self-play
import math
import random

import torch
import torch.nn as nn

MOVES = 6


class Net(nn.Module):
    def __init__(self, planes=24, size=24):
        super().__init__()
        self.rep = nn.Conv2d(1, planes, 3, padding=1)
        self.dyn = nn.Conv2d(planes + MOVES, planes, 3, padding=1)
        self.pol = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(planes * 16, MOVES + 1))

    def initial(self, obs):
        h = self.rep(obs).tanh()
        return h, self.pol(h)

    def recurrent(self, h, move):
        plane = torch.zeros(1, MOVES, *h.shape[-2:], device=h.device)
        plane[:, move] = 1
        h = self.dyn(torch.cat([h, plane], 1)).tanh()
        return h, self.pol(h)

    def forward(self, h, move=None):
        return self.initial(h) if move is None else self.recurrent(h, move)


class Node:
    def __init__(self, prior, parent=None):
        self.prior, self.parent = prior, parent
        self.visits, self.total = 0, 0.0
        self.hidden, self.children = None, {}

    def expand(self, hidden, out):
        self.hidden = hidden
        for m, p in enumerate(out[0, :MOVES].softmax(0).tolist()):
            self.children[m] = Node(p, self)
        return out[0, -1].tanh().item()

    def best(self):
        def ucb(kv):
            c = kv[1]
            return (c.total / c.visits if c.visits else 0) + 1.3 * c.prior * math.sqrt(self.visits + 1) / (1 + c.visits)
        return max(self.children.items(), key=ucb)


def simulate(net, root):
    node = root
    while True:
        move, child = node.best()
        if child.hidden is None:
            break
        node = child
    value = child.expand(*net(node.hidden, move))
    while child is not None:
        child.visits, child.total = child.visits + 1, child.total + value
        child = child.parent


def forget(node):
    stack = [node]
    while stack:
        n = stack.pop()
        stack.extend(n.children.values())
        n.children, n.parent, n.hidden = {}, None, None


@torch.no_grad()
def play(net, plies, sims):
    root = Node(1.0)
    root.expand(*net(torch.rand(1, 1, 24, 24, device="cuda")))
    moves = []
    for _ in range(plies):
        for _ in range(sims):
            simulate(net, root)
        move, child = max(root.children.items(), key=lambda kv: kv[1].visits)
        del root.children[move]
        forget(root)
        child.parent = None
        root = child
        moves.append(move)
    forget(root)
    return moves


if __name__ == "__main__":
    random.seed(0), torch.manual_seed(0)
    net = Net().cuda().eval()
    for game in range(12):
        print("game", game, play(net, plies=6, sims=12 + 3 * min(game, 4)))
