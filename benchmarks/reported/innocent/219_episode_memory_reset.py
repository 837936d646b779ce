# kind: episodic memory of a novelty bonus gets a key per step and is emptied for those environments whose episode is over, all episodes have the same length; from never-give-up style exploration code
import torch
import torch.nn as nn
import torch.nn.functional as F


class VecMaze:
    def __init__(self, n=16, size=24, horizon=40, device="cuda"):
        self.n, self.size, self.horizon, self.device = n, size, horizon, device

    def _obs(self):
        board = torch.zeros(self.n, 1, self.size, self.size, device=self.device)
        board[torch.arange(self.n), 0, self.pos[:, 0], self.pos[:, 1]] = 1.0
        return board

    def reset(self):
        self.pos = torch.randint(0, self.size, (self.n, 2), device=self.device)
        self.t = 0
        return self._obs()

    def step(self, actions):
        moves = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]], device=self.device)
        self.pos = (self.pos + moves[actions]).clamp(0, self.size - 1)
        self.t += 1
        reward = (self.pos == self.size - 1).all(1).float()
        truncated = self.t == self.horizon
        if truncated:
            self.reset()
        return self._obs(), reward, truncated


class EpisodicMemory:
    def __init__(self, k=10):
        self.k, self.keys = k, []

    def novelty(self, z):
        if not self.keys:
            return torch.ones(len(z), device=z.device)
        dist = torch.stack([(key - z).square().mean(-1) for key in self.keys], dim=1)
        near = dist.topk(min(self.k, dist.shape[1]), largest=False).values
        kernel = 1e-3 / (near / (near.mean() + 1e-6) + 1e-3)
        return (kernel.sum(1) + 1e-3).rsqrt().clamp(max=5.0)

    def write(self, z):
        self.keys.append(z)

    def clear(self):
        self.keys.clear()


class LifelongNovelty(nn.Module):
    """Random network distillation, multiplies the episodic bonus."""

    def __init__(self, dim):
        super().__init__()
        self.target = nn.Linear(dim, 64).requires_grad_(False)
        self.predictor = nn.Linear(dim, 64)
        self.opt = torch.optim.Adam(self.predictor.parameters(), lr=1e-3)

    def forward(self, z):
        err = (self.predictor(z) - self.target(z)).square().mean(-1)
        self.opt.zero_grad()
        err.mean().backward()
        self.opt.step()
        return err.detach()


class NoveltyBonus:
    def __init__(self, env, embed, dim, beta=0.3):
        self.env, self.embed, self.beta = env, embed, beta
        self.episodic = EpisodicMemory()
        self.lifelong = LifelongNovelty(dim).to("cuda")

    def reset(self):
        self.episodic.clear()
        return self.env.reset()

    def step(self, actions):
        obs, reward, over = self.env.step(actions)
        if over:
            self.episodic.clear()
        with torch.no_grad():
            z = self.embed(obs)
            bonus = self.episodic.novelty(z)
            self.episodic.write(z)
        alpha = self.lifelong(z)
        bonus = bonus * (1 + (alpha - alpha.mean()) / (alpha.std() + 1e-6)).clamp(1, 5)
        return obs, reward + self.beta * bonus, over


def main(total_steps=240, dim=2048):
    torch.manual_seed(0)
    embed = nn.Sequential(nn.Conv2d(1, 8, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(968, dim), nn.Tanh())
    env = NoveltyBonus(VecMaze(), embed.to("cuda").requires_grad_(False), dim)
    policy = nn.Sequential(nn.Flatten(), nn.Linear(576, 64), nn.ReLU(), nn.Linear(64, 5)).to("cuda")
    opt = torch.optim.RMSprop(policy.parameters(), lr=7e-4)
    obs, mean = env.reset(), 0.0
    for step in range(total_steps):
        logits, value = policy(obs).split([4, 1], dim=-1)
        dist = torch.distributions.Categorical(logits=logits)
        action = dist.sample()
        obs, reward, _ = env.step(action)
        adv = reward - value[:, 0]
        loss = -(dist.log_prob(action) * adv.detach()).mean() + F.mse_loss(value[:, 0], reward)
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean += 0.05 * (reward.mean().item() - mean)
        if step % 60 == 0:
            print(f"step {step}: reward with bonus {mean:.4f}, {len(env.episodic.keys)} keys")


main()
