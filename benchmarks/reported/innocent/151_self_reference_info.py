# kind: the info dict of a vectorised environment refers to itself under final_info, the cycles with their observations are freed whenever Python's collector happens to run; after mani-skill/ManiSkill PR 320
import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(13)
dev = "cuda"


class CameraEnv:
    def __init__(self, n=32, size=48):
        self.n, self.size = n, size
        self.t = 0
        self.gen = torch.Generator().manual_seed(1)
        self.background = torch.rand(n, 1, size, size, generator=self.gen).to(dev)
        self.x = torch.zeros(n, 2, device=dev)

    def render(self):
        axis = torch.linspace(-1, 1, self.size, device=dev)
        d = (axis[None, None, :] - self.x[:, :1, None]) ** 2 + (axis[None, :, None] - self.x[:, 1:, None]) ** 2
        return self.background + torch.exp(-20 * d)[:, None]

    def step(self, action):
        self.t += 1
        self.x = (self.x + 0.1 * action).clamp(-1, 1)
        reward = -self.x.square().sum(-1)
        done = torch.full((self.n,), self.t % 20 == 0, device=dev)
        info = {"elapsed": self.t, "final": done.any().item(), "position": self.x.clone()}
        obs = self.render()
        return obs, reward, done, info


class GymVectorWrapper:
    def __init__(self, env):
        self.env = env

    def reset(self):
        self.env.x = torch.rand(self.env.n, 2, device=dev) * 2 - 1
        return self.env.render()

    def step(self, action):
        obs, reward, done, infos = self.env.step(action)
        infos["real_next_obs"] = obs
        infos["final_info"] = infos
        if infos["final"]:
            obs = self.reset()
        return obs, reward, done, infos


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.AvgPool2d(6), nn.Flatten(), nn.Linear(64, 48), nn.Tanh())
        self.mean = nn.Linear(48, 2)

    def forward(self, obs):
        return Normal(torch.tanh(self.mean(self.enc(obs))), 0.3)


def main():
    env = GymVectorWrapper(CameraEnv())
    policy = Policy().to(dev)
    opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
    obs = env.reset()
    log_book = []
    for update in range(220):
        logps, rewards, total = [], [], torch.zeros(32, device=dev)
        for _ in range(5):
            dist = policy(obs)
            action = dist.sample()
            logps.append(dist.log_prob(action).sum(-1))
            obs, reward, done, infos = env.step(action)
            rewards.append(reward)
            total += reward
            for i, value in enumerate(reward.tolist()):
                log_book.append({"env": i, "t": infos["elapsed"], "reward": value})
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
        adv = returns - returns.mean(1, keepdim=True)
        loss = -(torch.stack(logps) * adv.detach()).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if update % 55 == 54:
            recent = log_book[-800:]
            print(f"update {update + 1}: reward {sum(e['reward'] for e in recent) / len(recent):.4f}")


if __name__ == "__main__":
    main()
