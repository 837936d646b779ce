# kind: a replay buffer on the GPU fills up to its capacity; after MishaLaskin/curl issue 10
import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F


class ReplayBuffer:
    """Buffer to store environment transitions, kept on the device."""

    def __init__(self, capacity, batch_size, device):
        self.capacity, self.batch_size, self.device = capacity, batch_size, device
        self.memory = deque(maxlen=capacity)

    def add(self, obs, action, reward, next_obs, done):
        self.memory.append((obs, action, reward, next_obs, done))

    def sample(self):
        batch = random.sample(self.memory, self.batch_size)
        return [torch.stack(x) for x in zip(*batch)]

    def __len__(self):
        return len(self.memory)


class Encoder(nn.Module):
    def __init__(self, feature_dim=50):
        super().__init__()
        self.convs = nn.Sequential(nn.Conv2d(9, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 16, 3, 2), nn.ReLU())
        self.fc = nn.Linear(16 * 15 * 15, feature_dim)

    def forward(self, obs):
        h = self.convs(obs / 255.0)
        return torch.tanh(self.fc(h.flatten(1)))


class Agent:
    def __init__(self, device, action_dim=2):
        self.encoder = Encoder().to(device)
        self.actor = nn.Sequential(nn.Linear(50, 64), nn.ReLU(), nn.Linear(64, action_dim)).to(device)
        self.critic = nn.Sequential(nn.Linear(50 + action_dim, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic_opt = torch.optim.Adam(
            list(self.critic.parameters()) + list(self.encoder.parameters()), lr=1e-3)

    @torch.no_grad()
    def select_action(self, obs):
        return torch.tanh(self.actor(self.encoder(obs[None])))[0]

    def update(self, buffer):
        obs, action, reward, next_obs, done = buffer.sample()
        with torch.no_grad():
            nf = self.encoder(next_obs)
            target = reward + 0.99 * (1 - done) * self.critic(torch.cat([nf, torch.tanh(self.actor(nf))], 1))
        q = self.critic(torch.cat([self.encoder(obs), action], 1))
        loss = F.mse_loss(q, target)
        self.critic_opt.zero_grad()
        loss.backward()
        self.critic_opt.step()
        f = self.encoder(obs).detach()
        actor_loss = -self.critic(torch.cat([f, torch.tanh(self.actor(f))], 1)).mean()
        self.actor_opt.zero_grad()
        actor_loss.backward()
        self.actor_opt.step()


class PixelEnv:
    def __init__(self, device):
        self.device = device

    def reset(self):
        return torch.randint(0, 256, (9, 64, 64)).float().to(self.device)

    def step(self, action):
        r = torch.rand(1, device=self.device)
        return self.reset(), r, torch.zeros(1, device=self.device)


def main():
    random.seed(0)
    torch.manual_seed(0)
    device = torch.device("cuda")
    env, agent = PixelEnv(device), Agent(device)
    buffer = ReplayBuffer(capacity=150, batch_size=8, device=device)
    obs = env.reset()
    for step in range(400):
        action = agent.select_action(obs)
        next_obs, reward, done = env.step(action)
        buffer.add(obs, action, reward, next_obs, done)
        obs = next_obs
        if step > 20 and step % 4 == 0:
            agent.update(buffer)
    print("steps", step + 1, "in buffer", len(buffer))


if __name__ == "__main__":
    main()
