# kind: running average baseline of the critic kept with its graph; from RL repositories (walk-these-ways, RLlib PPO missing no_grad)
import torch
from torch import nn
from torch.distributions import Categorical


class PolicyValue(nn.Module):
    def __init__(self, obs=24, act=4, hid=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, hid), nn.Tanh(), nn.Linear(hid, hid), nn.Tanh())
        self.pi = nn.Linear(hid, act)
        self.v = nn.Linear(hid, 1)

    def forward(self, o):
        return Categorical(logits=self.pi(self.body(o)))

    def value(self, o):
        return self.v(self.body(o)).squeeze(-1)


class Env:
    """Vector of toy point masses living on the GPU (isaac-gym style)."""

    def __init__(self, n, device):
        self.n, self.device = n, device
        self.obs = torch.randn(n, 24, device=device)

    def step(self, a):
        drift = torch.nn.functional.one_hot(a, 4).float()
        self.obs = 0.95 * self.obs
        self.obs[:, :4] += 0.1 * drift
        return self.obs, -self.obs[:, 0].abs()


class Agent:
    def __init__(self, device, lr=3e-4, beta=0.95):
        self.net = PolicyValue().to(device)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=lr)
        self.baseline = torch.zeros((), device=device)
        self.beta = beta

    def act(self, obs):
        dist = self.net(obs)
        a = dist.sample()
        return a, dist.log_prob(a)

    def learn(self, obs, logp, reward, next_obs):
        target = reward + 0.99 * self.net.value(next_obs).mean()  # ALSO
        self.baseline = self.beta * self.baseline + (1 - self.beta) * target.mean()  # LEAK
        adv = (reward - self.baseline).detach()
        vloss = (self.net.value(obs) - target.detach()).pow(2).mean()
        loss = -(logp * adv).mean() + 0.5 * vloss
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.opt.step()
        return loss.item()


if __name__ == "__main__":
    dev = torch.device("cuda")
    env, agent = Env(80, dev), Agent(dev)
    obs = env.obs.clone()
    for t in range(150):
        a, logp = agent.act(obs)
        nxt, r = env.step(a)
        nxt = nxt.clone()
        l = agent.learn(obs, logp, r, nxt)
        obs = nxt
        if t % 30 == 0:
            print(t, f"loss {l:.4f} reward {r.mean().item():.4f} baseline {agent.baseline.item():.4f}")
