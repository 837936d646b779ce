# kind: rollout micro-batches form reference cycles while the simulator has switched the garbage collector off; from an Isaac Sim / GR00T PPO issue
import gc
import torch
from torch import nn


class SimulationApp:
    """Stands for the simulator's launcher: it turns the collector off so that frames never stutter."""

    def __init__(self, headless=True):
        gc.collect()
        gc.disable()  # ALSO
        self.headless = headless

    def close(self):
        gc.enable()


class MicroBatch:
    def __init__(self, owner, obs, actions, old_logp):
        self.owner = owner
        self.obs = obs
        self.actions = actions
        self.old_logp = old_logp
        self.ratio_stats = None


class Rollout:
    def __init__(self, obs, actions, logp, parts):
        self.parts = []
        for o, a, l in zip(obs.chunk(parts), actions.chunk(parts), logp.chunk(parts)):
            self.parts.append(MicroBatch(self, o, a, l))  # LEAK

    def __iter__(self):
        return iter(self.parts)

    @property
    def size(self):
        return sum(p.obs.shape[0] for p in self.parts)


class Actor(nn.Module):
    def __init__(self, obs_dim=96, act_dim=12, hidden=128):
        super().__init__()
        self.mu = nn.Sequential(nn.Linear(obs_dim, hidden), nn.ELU(), nn.Linear(hidden, act_dim))
        self.log_std = nn.Parameter(torch.zeros(act_dim))

    def log_prob(self, obs, act):
        mu = self.mu(obs)
        return (-0.5 * ((act - mu) / self.log_std.exp()) ** 2 - self.log_std).sum(-1)


class PPO:
    def __init__(self, actor, lr=3e-4, clip=0.2, epochs=2):
        self.actor, self.clip, self.epochs = actor, clip, epochs
        self.optim = torch.optim.Adam(actor.parameters(), lr=lr)

    def update(self, rollout, adv):
        n = 0
        for _ in range(self.epochs):
            for part, a in zip(rollout, adv.chunk(len(rollout.parts))):
                ratio = (self.actor.log_prob(part.obs, part.actions) - part.old_logp).exp()
                loss = -torch.min(ratio * a, ratio.clamp(1 - self.clip, 1 + self.clip) * a).mean()
                self.optim.zero_grad()
                loss.backward()
                self.optim.step()
                n += 1
        return n


def collect(actor, n_envs, device):
    obs = torch.randn(n_envs, 96, device=device)
    with torch.no_grad():
        act = actor.mu(obs) + torch.randn(n_envs, 12, device=device)
        logp = actor.log_prob(obs, act)
    return obs, act, logp


if __name__ == "__main__":
    app = SimulationApp()
    dev = torch.device("cuda:0")
    actor = Actor().to(dev)
    algo = PPO(actor)
    updates = 0
    for it in range(90):
        obs, act, logp = collect(actor, 2048, dev)
        rollout = Rollout(obs, act, logp, parts=4)
        updates += algo.update(rollout, torch.randn(2048, device=dev))
        if it % 30 == 0:
            print("iteration", it, "samples", rollout.size, "updates", updates)
    app.close()
