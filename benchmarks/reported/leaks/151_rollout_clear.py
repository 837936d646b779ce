# kind: clear() of a PPO rollout memory empties the lists that came with it and misses the list of images added for the curiosity bonus, which is read from its end; after nikhilbarhate99/PPO-PyTorch issue 16
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(15)
device = torch.device("cuda")


class Memory:
    def __init__(self):
        self.states = []
        self.actions = []
        self.logprobs = []
        self.rewards = []
        self.is_terminals = []
        self.frames = []

    def clear_memory(self):
        del self.states[:]
        del self.actions[:]
        del self.logprobs[:]
        del self.rewards[:]
        del self.is_terminals[:]


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, n_actions):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(obs_dim, 64), nn.Tanh(), nn.Linear(64, n_actions))
        self.critic = nn.Sequential(nn.Linear(obs_dim, 64), nn.Tanh(), nn.Linear(64, 1))

    def act(self, state, memory):
        dist = Categorical(logits=self.actor(state))
        action = dist.sample()
        memory.states.append(state)
        memory.actions.append(action)
        memory.logprobs.append(dist.log_prob(action).detach())
        return action

    def evaluate(self, states, actions):
        dist = Categorical(logits=self.actor(states))
        return dist.log_prob(actions), self.critic(states).squeeze(-1), dist.entropy()


class GridCamera:
    """Vectorised toy world: 16 agents walk over a picture; returns features and camera frames."""

    def __init__(self, n=16, seed=0):
        self.gen = torch.Generator().manual_seed(seed)
        self.world = torch.rand(1, 1, 96, 96, generator=self.gen).to(device)
        self.pos = torch.zeros(n, 2, device=device)

    def step(self, action=None):
        if action is not None:
            move = torch.stack([(action == 0).float() - (action == 1).float(),
                                (action == 2).float() - (action == 3).float()], -1)
            self.pos = (self.pos + 0.1 * move).clamp(-1, 1)
        n = len(self.pos)
        theta = torch.zeros(n, 2, 3, device=device)
        theta[:, 0, 0] = theta[:, 1, 1] = 0.4
        theta[:, :, 2] = self.pos
        grid = nn.functional.affine_grid(theta, (n, 1, 96, 96), align_corners=False)
        frames = nn.functional.grid_sample(self.world.expand(n, -1, -1, -1), grid, align_corners=False)
        feats = nn.functional.adaptive_avg_pool2d(frames, 4).flatten(1)
        return feats, frames, frames.mean((1, 2, 3))


def main():
    env, memory = GridCamera(), Memory()
    policy = ActorCritic(16, 4).to(device)
    curiosity = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(144, 16)).to(device)
    opt = torch.optim.Adam([*policy.parameters(), *curiosity.parameters()], lr=1e-3)
    horizon = 16
    feats, frames, _ = env.step()
    for t in range(1, 301):
        with torch.no_grad():
            action = policy.act(feats, memory)
        memory.frames.append(frames)  # LEAK
        feats, frames, reward = env.step(action)
        memory.rewards.append(reward)
        memory.is_terminals.append(False)
        if t % horizon:
            continue
        states, actions = torch.stack(memory.states), torch.stack(memory.actions)
        old = torch.stack(memory.logprobs)
        seen = torch.stack(memory.frames[-horizon:]).flatten(0, 1)
        returns = torch.stack(memory.rewards).flip(0).cumsum(0).flip(0)
        for _ in range(4):
            logp, values, entropy = policy.evaluate(states, actions)
            surprise = (curiosity(seen).view_as(states) - states).pow(2).mean(-1)
            adv = returns + surprise.detach() - values.detach()
            ratio = (logp - old).exp()
            actor = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            loss = actor + 0.5 * (values - returns).pow(2).mean() + surprise.mean() - 0.01 * entropy.mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        memory.clear_memory()
        if t % 80 == 0:
            print(f"step {t} loss {loss.item():.3f} return {returns[0].mean().item():.3f}")


if __name__ == "__main__":
    main()
