# kind: planner with tree search goes on from the child that was played, the new root still knows its parent and through it the whole tree of all moves before, the task has no end; after JuliaPOMDP/MCTS.jl issue 77 (reuse_tree) and opendilab/LightZero PR 492 (parent and child hold each other)
import math
import random

import torch
import torch.nn as nn

ACTIONS = 5


class LatentModel(nn.Module):
    """MuZero style: representation, dynamics, prediction."""

    def __init__(self, channels=16, side=12):
        super().__init__()
        self.represent = nn.Conv2d(2, channels, 3, padding=1)
        self.move = nn.Conv2d(channels + ACTIONS, channels, 3, padding=1)
        self.predict = nn.Linear(channels * side * side, ACTIONS + 2)

    def observe(self, image):
        h = torch.tanh(self.represent(image))
        return h, *self.read(h)

    def imagine(self, h, action):
        plane = h.new_zeros(1, ACTIONS, *h.shape[-2:])
        plane[:, action] = 1
        h = torch.tanh(h + self.move(torch.cat([h, plane], 1)))
        return h, *self.read(h)

    def read(self, h):
        out = self.predict(h.flatten(1))[0].tolist()
        top = max(out[:ACTIONS])
        e = [math.exp(v - top) for v in out[:ACTIONS]]
        return [v / sum(e) for v in e], math.tanh(out[-2]), math.tanh(out[-1])


class Node:
    def __init__(self, parent, prior):
        self.parent = parent  # LEAK
        self.prior = prior
        self.children = {}
        self.latent = None
        self.visits, self.total, self.reward = 0, 0.0, 0.0

    @property
    def value(self):
        return self.total / self.visits if self.visits else 0.0

    def expand(self, latent, policy, reward):
        self.latent, self.reward = latent, reward
        for action, prior in enumerate(policy):
            self.children[action] = Node(self, prior)

    def best(self, c=1.4):
        scale = c * math.sqrt(self.visits + 1)
        return max(self.children.items(), key=lambda kv: kv[1].value + scale * kv[1].prior / (1 + kv[1].visits))

    def backup(self, value, discount=0.97):
        node = self
        while node is not None:
            node.visits += 1
            node.total += value
            value = node.reward + discount * value
            node = node.parent


class Planner:
    def __init__(self, model, simulations):
        self.model, self.simulations = model, simulations
        self.root = Node(None, 1.0)

    def simulate(self):
        node, action = self.root, None
        while node.children:
            action, node = node.best()
        latent, policy, reward, value = self.model.imagine(node.parent.latent, action)
        node.expand(latent, policy, reward)
        node.backup(value)

    @torch.no_grad()
    def act(self, image):
        if not self.root.children:
            latent, policy, reward, _ = self.model.observe(image)
            self.root.expand(latent, policy, reward)
        for _ in range(self.simulations):
            self.simulate()
        action = max(self.root.children, key=lambda a: self.root.children[a].visits)
        self.root = self.root.children[action]  # ALSO
        return action


class Conveyor:
    """Boxes come along for ever, the arm moves over the belt."""

    def __init__(self, side=12):
        self.belt = torch.zeros(side, side)
        self.arm = side // 2

    def image(self):
        arm = torch.zeros_like(self.belt)
        arm[-1, self.arm] = 1
        return torch.stack([self.belt, arm])[None].cuda()

    def step(self, action):
        self.arm = min(max(self.arm + action - ACTIONS // 2, 0), len(self.belt) - 1)
        hit = self.belt[-1, self.arm].item()
        self.belt = self.belt.roll(1, 0)
        self.belt[0] = 0
        self.belt[0, random.randrange(len(self.belt))] = 1
        return hit


def main(steps=60):
    random.seed(0)
    torch.manual_seed(0)
    env, planner = Conveyor(), Planner(LatentModel().cuda().eval(), simulations=64)
    score = 0.0
    for t in range(steps):
        score += env.step(planner.act(env.image()))
        if t % 15 == 0:
            print(f"{t}: score {score:.0f}, root visited {planner.root.visits} times")


if __name__ == "__main__":
    main()
