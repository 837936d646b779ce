# kind: the rollout of a PPO agent is reset with a shallow copy of a module-level template, the lists in it are the same ones as before and are never empty again; after opendilab/DI-engine PR 342 and Itomigna2/Muesli-lunarlander issue 1
import torch
import torch.nn as nn
from torch.distributions import Categorical

DEVICE = "cuda"
ENVS, HORIZON, UPDATES = 8, 10, 20
EMPTY = {"obs": [], "action": [], "logp": [], "value": [], "reward": [], "done": []}


class CatchEnv:
    """A batch of games: a ball falls down, the paddle has to be below it."""

    size = 40

    def __init__(self, n):
        self.n = n
        self.ball = torch.zeros(n, 2, dtype=torch.long)
        self.paddle = torch.full((n,), self.size // 2)
        self.restart(torch.ones(n, dtype=torch.bool))

    def restart(self, which):
        k = int(which.sum())
        self.ball[which] = torch.stack((torch.zeros(k, dtype=torch.long), torch.randint(0, self.size, (k,))), 1)

    def render(self):
        frame = torch.zeros(self.n, 4, self.size, self.size)
        rows = torch.arange(self.n)
        frame[rows, 0, self.ball[:, 0], self.ball[:, 1]] = 1
        frame[rows, 1, -1, self.paddle] = 1
        frame[:, 2] = torch.linspace(-1, 1, self.size)
        frame[:, 3] = torch.linspace(-1, 1, self.size).view(-1, 1)
        return frame.to(DEVICE)

    def step(self, action):
        self.paddle = (self.paddle + (action.cpu() - 1) * 3).clamp(0, self.size - 1)
        self.ball[:, 0] += 3
        done = self.ball[:, 0] >= self.size - 1
        hit = (self.ball[:, 1] - self.paddle).abs() <= 3
        reward = torch.where(done, torch.where(hit, 1.0, -1.0), 0.0)
        self.restart(done)
        return self.render(), reward.to(DEVICE), done.float().to(DEVICE)


class Rollout:
    def __init__(self, horizon):
        self.horizon = horizon
        self.reset()

    def reset(self):
        self.data = EMPTY.copy()  # ALSO

    def add(self, **items):
        for name, value in items.items():
            self.data[name].append(value)  # LEAK

    def batch(self, name):
        return torch.stack(self.data[name][-self.horizon:])


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(4, 12, 5, stride=4), nn.ReLU(),
                                   nn.Conv2d(12, 24, 3, stride=2), nn.ReLU(), nn.Flatten(),
                                   nn.Linear(24 * 16, 96), nn.ReLU())
        self.pi, self.v = nn.Linear(96, 3), nn.Linear(96, 1)

    def forward(self, obs):
        h = self.trunk(obs)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def returns(rollout, last_value, gamma=0.98):
    out, running = [], last_value
    for reward, done in zip(rollout.batch("reward").flip(0), rollout.batch("done").flip(0)):
        running = reward + gamma * running * (1 - done)
        out.append(running)
    return torch.stack(out[::-1])


def update(agent, optimizer, rollout, target, epochs=2, clip=0.2):
    obs, action = rollout.batch("obs").flatten(0, 1), rollout.batch("action").flatten()
    old_logp, target = rollout.batch("logp").flatten(), target.flatten()
    advantage = target - rollout.batch("value").flatten()
    for _ in range(epochs):
        dist, value = agent(obs)
        ratio = (dist.log_prob(action) - old_logp).exp()
        surrogate = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
        loss = 0.5 * (value - target).pow(2).mean() - surrogate - 0.01 * dist.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
env, agent, rollout = CatchEnv(ENVS), ActorCritic().to(DEVICE), Rollout(HORIZON)
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
obs = env.render()
for n in range(UPDATES):
    for _ in range(HORIZON):
        with torch.no_grad():
            dist, value = agent(obs)
            action = dist.sample()
        following, reward, done = env.step(action)
        rollout.add(obs=obs, action=action, logp=dist.log_prob(action), value=value, reward=reward, done=done)
        obs = following
    with torch.no_grad():
        target = returns(rollout, agent(obs)[1])
    update(agent, optimizer, rollout, target)
    if n % 4 == 0:
        print(f"update {n:2d}: mean reward {rollout.batch('reward').mean().item():+.3f}")
    rollout.reset()
