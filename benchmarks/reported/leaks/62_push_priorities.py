# kind: initial priorities of a prioritized replay are computed by the learner's network with gradients and kept as tensors; from Kaixhin/Rainbow PR 33 (graphs stored in the replay memory)
import random
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple("Transition", "state action reward next_state done")


class Catch:
    """A ball falls down a small screen, the paddle tries to be below it."""

    def __init__(self, size=32):
        self.size = size

    def _screen(self):
        s = np.zeros((1, self.size, self.size), dtype=np.float32)
        s[0, self.y, self.x] = 1
        s[0, -1, max(0, self.paddle - 1):self.paddle + 2] = 1
        return s

    def reset(self):
        self.x, self.y, self.paddle = random.randrange(self.size), 0, self.size // 2
        return self._screen()

    def step(self, action):
        self.paddle = min(max(self.paddle + (action - 1) * 2, 0), self.size - 1)
        self.y += 1
        done = self.y == self.size - 1
        reward = float(abs(self.x - self.paddle) <= 1) if done else 0.0
        return self._screen(), reward, done


class QNet(nn.Module):
    def __init__(self, actions=3):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 36, 5, stride=1, padding=2)
        self.conv2 = nn.Conv2d(36, 16, 3, stride=2, padding=1)
        self.out = nn.Linear(16 * 16 * 16, actions)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.out(x.flatten(1))


class ReplayMemory:
    def __init__(self, alpha=0.6):
        self.data = deque()
        self.priorities = []
        self.alpha = alpha

    def push(self, transition, priority):
        self.data.append(transition)
        self.priorities.append(priority)  # LEAK

    def sample(self, k):
        p = np.array([float(x) for x in self.priorities]) ** self.alpha
        idx = np.random.choice(len(p), k, p=p / p.sum())
        return Transition(*map(np.stack, zip(*(self.data[i] for i in idx))))


class Agent:
    def __init__(self, gamma=0.95):
        self.net, self.target = QNet().cuda(), QNet().cuda()
        self.target.load_state_dict(self.net.state_dict())
        self.opt = torch.optim.RMSprop(self.net.parameters(), lr=2e-4)
        self.gamma = gamma

    def act(self, state, eps):
        if random.random() < eps:
            return random.randrange(3)
        with torch.no_grad():
            return self.net(torch.from_numpy(state)[None].cuda()).argmax().item()

    def td_error(self, s, a, r, s2, d):
        q = self.net(s).gather(1, a[:, None]).squeeze(1)
        with torch.no_grad():
            best = self.target(s2).max(1).values
        return r + self.gamma * best * (1 - d) - q

    def to_batch(self, t):
        conv = lambda v, dt: torch.as_tensor(np.asarray(v), dtype=dt).cuda()
        return (conv(t.state, torch.float32), conv(t.action, torch.int64), conv(t.reward, torch.float32),
                conv(t.next_state, torch.float32), conv(t.done, torch.float32))

    def priority(self, t):
        one = Transition([t.state], [t.action], [t.reward], [t.next_state], [t.done])
        return self.td_error(*self.to_batch(one)).abs()[0] + 1e-3

    def learn(self, batch):
        loss = self.td_error(*self.to_batch(batch)).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


random.seed(0)
np.random.seed(0)
env, agent, memory = Catch(), Agent(), ReplayMemory()
state, eps = env.reset(), 1.0
for step in range(1, 221):
    action = agent.act(state, eps)
    nxt, reward, done = env.step(action)
    t = Transition(state, action, reward, nxt, float(done))
    memory.push(t, agent.priority(t))
    state = env.reset() if done else nxt
    eps = max(0.1, eps * 0.99)
    if step % 2 == 0 and len(memory.data) >= 16:
        loss = agent.learn(memory.sample(16))
    if step % 80 == 0:
        agent.target.load_state_dict(agent.net.state_dict())
        print(f"step {step} eps {eps:.2f} loss {loss:.4f}")
