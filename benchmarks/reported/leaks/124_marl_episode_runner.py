# kind: the episode runner stores actions in the replay buffer with their policy graph attached; from oxwhirl/pymarl PR 73
import random
from types import SimpleNamespace as SN

import torch
from torch import nn
import torch.nn.functional as F


class RNNAgent(nn.Module):
    def __init__(self, obs_dim, hidden, n_actions):
        super().__init__()
        self.hidden = hidden
        self.fc1 = nn.Linear(obs_dim, hidden)
        self.rnn = nn.GRUCell(hidden, hidden)
        self.fc2 = nn.Linear(hidden, n_actions)

    def init_hidden(self, n):
        return torch.zeros(n, self.hidden, device="cuda")

    def forward(self, obs, h):
        h = self.rnn(F.relu(self.fc1(obs)), h)
        return self.fc2(h), h


class EpisodeBuffer:
    def __init__(self, capacity):
        self.capacity = capacity
        self.episodes = []
        self.position = 0

    def insert_episode(self, episode):
        if len(self.episodes) < self.capacity:
            self.episodes.append(episode)  # ALSO
        else:
            self.episodes[self.position % self.capacity] = episode
        self.position += 1

    def sample(self, n):
        return random.sample(self.episodes, n)


class SpreadEnv:
    def __init__(self, n_agents, obs_dim):
        self.n_agents, self.obs_dim = n_agents, obs_dim

    def reset(self):
        self.state = torch.randn(self.n_agents, self.obs_dim, device="cuda")
        return self.state

    def step(self, actions):
        self.state = 0.9 * self.state + 0.1 * torch.randn_like(self.state)
        reward = -(actions.argmax(-1).float() - 2).abs().mean()
        return self.state, reward


class EpisodeRunner:
    def __init__(self, env, agent, args):
        self.env, self.agent, self.args = env, agent, args

    def run(self):
        episode = SN(obs=[], actions=[], rewards=[])
        obs = self.env.reset()
        h = self.agent.init_hidden(self.args.n_agents)
        for _ in range(self.args.episode_limit):
            q, h = self.agent(obs, h)
            actions = F.gumbel_softmax(q, hard=True)
            episode.obs.append(obs)
            episode.actions.append(actions)  # LEAK
            obs, reward = self.env.step(actions.detach())
            episode.rewards.append(reward)
        return episode


def learn(agent, optimizer, episodes, gamma=0.97):
    loss = 0.0
    for ep in episodes:
        h = agent.init_hidden(ep.obs[0].shape[0])
        qs = []
        for obs in ep.obs:
            q, h = agent(obs, h)
            qs.append(q)
        q = torch.stack(qs)
        chosen = (q * torch.stack(ep.actions).detach()).sum(-1)
        target = torch.stack(ep.rewards).unsqueeze(-1) + gamma * F.pad(q.max(-1).values[1:].detach(), (0, 0, 0, 1))
        loss = loss + F.mse_loss(chosen, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    random.seed(0)
    torch.manual_seed(0)
    args = SN(n_agents=16, episode_limit=5)
    agent = RNNAgent(obs_dim=48, hidden=128, n_actions=6).cuda()
    runner = EpisodeRunner(SpreadEnv(args.n_agents, 48), agent, args)
    buffer = EpisodeBuffer(capacity=5000)
    optimizer = torch.optim.RMSprop(agent.parameters(), lr=5e-4)
    for step in range(100):
        buffer.insert_episode(runner.run())  # ALSO
        if len(buffer.episodes) >= 4:
            learn(agent, optimizer, buffer.sample(2))


main()
