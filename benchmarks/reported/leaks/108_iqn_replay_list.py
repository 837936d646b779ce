# kind: replay memory is a plain list of GPU transitions with no capacity; from BY571/IQN-and-Extensions issue 3
import random
from collections import namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple("Transition", "state action reward next_state done")


class GridEnv:
    def __init__(self, size=60, device="cuda"):
        self.size, self.device = size, device
        self.reset()

    def reset(self):
        self.pos = [self.size // 2, self.size // 2]
        self.t = 0
        self.frames = torch.zeros(4, self.size, self.size, device=self.device)
        return self._observe()

    def _observe(self):
        frame = torch.zeros(1, self.size, self.size, device=self.device)
        frame[0, self.pos[0], self.pos[1]] = 1
        self.frames = torch.cat((self.frames[1:], frame))
        return self.frames

    def step(self, action):
        axis, delta = action // 2, 1 - 2 * (action % 2)
        self.pos[axis] = min(max(self.pos[axis] + delta, 0), self.size - 1)
        self.t += 1
        return self._observe(), float(self.pos[0] > self.size // 2), self.t >= 25


class QNet(nn.Module):
    def __init__(self, actions=4):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(4, 8, 6, 4), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(),
                                 nn.Flatten(), nn.Linear(576, 64), nn.ReLU(), nn.Linear(64, actions))

    def forward(self, x):
        return self.net(x)


class ReplayMemory:
    def __init__(self, batch_size=16):
        self.batch_size = batch_size
        self.memory = []

    def add(self, *args):
        self.memory.append(Transition(*args))  # LEAK

    def sample(self):
        batch = Transition(*zip(*random.sample(self.memory, self.batch_size)))
        to = lambda v: torch.tensor(v, device="cuda")
        return (torch.stack(batch.state), to(batch.action), to(batch.reward), torch.stack(batch.next_state),
                to(batch.done).float())

    def __len__(self):
        return len(self.memory)


class Agent:
    def __init__(self, gamma=0.97):
        self.q, self.target = QNet().cuda(), QNet().cuda()
        self.target.load_state_dict(self.q.state_dict())
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=5e-4)
        self.memory, self.gamma = ReplayMemory(), gamma

    def act(self, state, eps):
        if random.random() < eps:
            return random.randrange(4)
        with torch.no_grad():
            return self.q(state[None]).argmax(1).item()

    def step(self, *transition):
        self.memory.add(*transition)  # ALSO
        if len(self.memory) < 32:
            return
        state, action, reward, next_state, done = self.memory.sample()
        with torch.no_grad():
            target = reward + self.gamma * (1 - done) * self.target(next_state).max(1).values
        value = self.q(state).gather(1, action[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        for p, q in zip(self.target.parameters(), self.q.parameters()):
            p.data.lerp_(q.data, 0.01)


def run(frames=320):
    env, agent = GridEnv(), Agent()
    state, score, scores = env.reset(), 0.0, []
    for frame in range(frames):
        eps = max(0.05, 1 - frame / 200)
        action = agent.act(state, eps)
        next_state, reward, done = env.step(action)
        agent.step(state, action, reward, next_state, done)
        state = next_state
        score += reward
        if done:
            scores.append(score)
            state, score = env.reset(), 0.0
    print("episodes", len(scores), "mean score", sum(scores) / len(scores))


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    run()
