# kind: innocent, rewards, log-probs and values with graph are gathered for n steps, then one update and the lists are emptied; from ikostrikov/pytorch-a2c-ppo-acktr-gail, pytorch/examples actor_critic
import torch
import torch.nn as nn
from torch.distributions import Categorical


class LineWorld:
    def __init__(self, n_envs=24, dim=32):
        self.n_envs, self.dim = n_envs, dim
        self.basis = torch.randn(64, dim, device="cuda")
        self.pos = torch.randint(0, 64, (n_envs,), device="cuda")
        self.goal = 40

    def observe(self):
        return self.basis[self.pos]

    def step(self, action):
        self.pos = (self.pos + 2 * action - 1).clamp(0, 63)
        done = self.pos == self.goal
        reward = done.float() - 0.01
        self.pos = torch.where(done, torch.randint_like(self.pos, 64), self.pos)
        return self.observe(), reward, done.float()


class Policy(nn.Module):
    def __init__(self, dim=32, hidden=128):
        super().__init__()
        self.cell = nn.GRUCell(dim, hidden)
        self.actor = nn.Linear(hidden, 2)
        self.critic = nn.Linear(hidden, 1)
        self.saved = []
        self.rewards = []

    def forward(self, obs, h):
        h = self.cell(obs, h)
        return Categorical(logits=self.actor(h)), self.critic(h).squeeze(1), h


def finish_rollout(policy, optimizer, next_value, gamma=0.97):
    returns, ret = [], next_value
    for reward, mask in reversed(policy.rewards):
        ret = reward + gamma * mask * ret
        returns.insert(0, ret)
    loss = 0.0
    for (log_prob, value, entropy), ret in zip(policy.saved, returns):
        advantage = ret - value
        loss = loss - (log_prob * advantage.detach()).mean() + 0.5 * advantage.pow(2).mean() - 0.01 * entropy
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
    optimizer.step()
    del policy.saved[:]
    del policy.rewards[:]
    return loss.item()


def main(total_steps=330, n_steps=5):
    torch.manual_seed(0)
    env, policy = LineWorld(), Policy().cuda()
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=7e-4, alpha=0.99, eps=1e-5)
    obs, h = env.observe(), torch.zeros(env.n_envs, 128, device="cuda")
    episode_reward = 0.0
    for step in range(1, total_steps + 1):
        dist, value, h = policy(obs, h)
        action = dist.sample()
        policy.saved.append((dist.log_prob(action), value, dist.entropy().mean()))
        obs, reward, done = env.step(action)
        h = h * (1 - done).unsqueeze(1)
        policy.rewards.append((reward, 1 - done))
        episode_reward += reward.mean().item()
        if step % n_steps == 0:
            with torch.no_grad():
                next_value = policy(obs, h)[1]
            loss = finish_rollout(policy, optimizer, next_value)
            h = h.detach()
        if step % 110 == 0:
            print(f"step {step} reward {episode_reward:.3f} loss {loss:.3f}")
            episode_reward = 0.0


if __name__ == "__main__":
    main()
