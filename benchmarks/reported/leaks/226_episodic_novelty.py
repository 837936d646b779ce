# kind: the memory of an episodic novelty bonus (never give up) is emptied in the wrapper's reset(), but vectorised environments start their episodes again by themselves inside of step() and nobody calls reset() after the beginning; from intrinsic reward code on top of gym's autoreset
import torch
import torch.nn as nn
import torch.nn.functional as F


class VecMaze:
    """Sixteen mazes at once, an episode that ends is begun anew within step()."""

    def __init__(self, n=16, size=24, horizon=40, device="cuda"):
        self.n, self.size, self.horizon, self.device = n, size, horizon, device

    def _obs(self):
        board = torch.zeros(self.n, 1, self.size, self.size, device=self.device)
        board[torch.arange(self.n), 0, self.pos[:, 0], self.pos[:, 1]] = 1.0
        return board

    def reset(self):
        self.pos = torch.randint(0, self.size, (self.n, 2), device=self.device)
        self.t = torch.randint(0, self.horizon, (self.n,), device=self.device)
        return self._obs()

    def step(self, actions):
        moves = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]], device=self.device)
        self.pos = (self.pos + moves[actions]).clamp(0, self.size - 1)
        self.t += 1
        reward = (self.pos == self.size - 1).all(1).float()
        done = (self.t >= self.horizon) | (reward > 0)
        self.pos[done] = 0
        self.t[done] = 0
        return self._obs(), reward, done


class EpisodicMemory:
    def __init__(self, k=10):
        self.k = k
        self.keys = []

    def clear(self):
        self.keys.clear()

    def write(self, z):
        self.keys.append(z)  # LEAK

    def novelty(self, z):
        if not self.keys:
            return torch.ones(len(z), device=z.device)
        past = torch.stack(self.keys[-32:], dim=1)
        dist = (past - z[:, None]).square().mean(-1)
        near = dist.topk(min(self.k, dist.shape[1]), largest=False).values
        kernel = 1e-3 / (near / (near.mean() + 1e-6) + 1e-3)
        return (kernel.sum(1) + 1e-3).rsqrt().clamp(max=5.0)


class NoveltyBonus:
    def __init__(self, env, embed, beta=0.3):
        self.env, self.embed, self.beta = env, embed, beta
        self.memory = EpisodicMemory()

    def reset(self):
        self.memory.clear()
        return self.env.reset()

    def _bonus(self, obs):
        with torch.no_grad():
            z = self.embed(obs)
            bonus = self.memory.novelty(z)
            self.memory.write(z)  # ALSO
        return bonus

    def step(self, actions):
        obs, reward, done = self.env.step(actions)
        return obs, reward + self.beta * self._bonus(obs), done


class Embedding(nn.Module):
    def __init__(self, dim=2048):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 4, stride=2)
        self.fc = nn.Linear(8 * 11 * 11, dim)

    def forward(self, obs):
        return torch.tanh(self.fc(F.relu(self.conv(obs)).flatten(1)))


def actor_critic_step(policy, opt, obs, env, gamma=0.97):
    logits, value = policy(obs).split([4, 1], dim=-1)
    dist = torch.distributions.Categorical(logits=logits)
    action = dist.sample()
    nxt, reward, done = env.step(action)
    with torch.no_grad():
        target = reward + gamma * (~done) * policy(nxt)[:, 4]
    adv = target - value[:, 0]
    loss = -(dist.log_prob(action) * adv.detach()).mean() + adv.square().mean() - 0.01 * dist.entropy().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return nxt, reward.mean().item()


def main(total_steps=240):
    torch.manual_seed(0)
    env = NoveltyBonus(VecMaze(), Embedding().to("cuda").requires_grad_(False))
    policy = nn.Sequential(nn.Flatten(), nn.Linear(576, 64), nn.ReLU(), nn.Linear(64, 5)).to("cuda")
    opt = torch.optim.RMSprop(policy.parameters(), lr=7e-4)
    obs = env.reset()
    mean = 0.0
    for step in range(total_steps):
        obs, r = actor_critic_step(policy, opt, obs, env)
        mean += 0.05 * (r - mean)
        if step % 60 == 0:
            print(f"step {step}: reward with bonus {mean:.4f}")


main()
