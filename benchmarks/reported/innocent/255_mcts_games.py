# kind: innocent, the search tree holds a hidden state in every node and grows with the moves of a game, but it is dropped when the game ends; in the manner of werner-duvaud/muzero-general self_play
import math
import random

import torch
import torch.nn as nn


class MuZeroNet(nn.Module):
    def __init__(self, hidden=4096, actions=5):
        super().__init__()
        self.actions = actions
        self.represent = nn.Linear(64, hidden)
        self.dynamics = nn.Linear(hidden + actions, 32)
        self.expand = nn.Linear(32, hidden)
        self.policy, self.value = nn.Linear(hidden, actions), nn.Linear(hidden, 1)

    def initial(self, obs):
        h = torch.tanh(self.represent(obs))
        return h, self.policy(h).softmax(-1), self.value(h)

    def recurrent(self, h, action):
        one_hot = torch.zeros(1, self.actions, device=h.device)
        one_hot[0, action] = 1
        h = torch.tanh(self.expand(torch.relu(self.dynamics(torch.cat([h, one_hot], 1)))))
        return h, self.policy(h).softmax(-1), self.value(h)


class Node:
    def __init__(self, prior, parent=None):
        self.prior, self.parent = prior, parent
        self.children = {}
        self.hidden = None
        self.visits, self.total = 0, 0.0

    def expand(self, hidden, policy):
        self.hidden = hidden
        for a, p in enumerate(policy[0].tolist()):
            self.children[a] = Node(p, self)

    def ucb(self, child):
        q = child.total / child.visits if child.visits else 0.0
        return q + 1.25 * (child.prior + 1e-3) * math.sqrt(self.visits + 1) / (1 + child.visits)

    def select(self, rng):
        return max(self.children.items(), key=lambda kv: (self.ucb(kv[1]), rng.random()))


class SelfPlay:
    def __init__(self, net, simulations=6, seed=0):
        self.net, self.simulations, self.rng = net, simulations, random.Random(seed)

    def simulate(self, root):
        node, action = root, None
        while node.children:
            action, node = node.select(self.rng)
        hidden, policy, value = self.net.recurrent(node.parent.hidden, action)
        node.expand(hidden, policy)
        v = value.item()
        while node is not None:
            node.visits += 1
            node.total += v
            node = node.parent

    @torch.no_grad()
    def play_game(self, moves=20):
        root = Node(1.0)
        root.expand(*self.net.initial(torch.rand(1, 64, device="cuda"))[:2])
        game_root, played = root, []
        for _ in range(moves):
            for _ in range(self.simulations):
                self.simulate(root)
            action, root = max(root.children.items(), key=lambda kv: kv[1].visits)
            played.append(action)
        return played, count(game_root)


def count(node):
    return (node.hidden is not None) + sum(count(c) for c in node.children.values())


if __name__ == "__main__":
    torch.manual_seed(0)
    worker = SelfPlay(MuZeroNet().cuda().eval())
    for game in range(8):
        played, states = worker.play_game()
        print(f"game {game}: {len(played)} moves, {states} hidden states")
