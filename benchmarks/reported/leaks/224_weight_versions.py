# kind: an asynchronous trainer keeps every version of the weights that some rollout worker may still need, a worker that was taken out of the pool still counts with the version it saw last, so the oldest one needed never moves on; from asynchronous RL post-training code (versioned weights, staleness) and MVCC-like stores
import random
from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Rollout:
    version: int
    states: torch.Tensor
    actions: torch.Tensor
    returns: torch.Tensor


class WeightStore:
    def __init__(self):
        self.version = 0
        self._snapshots = OrderedDict()
        self._in_use = {}

    def _keep(self, version, state):
        self._snapshots[version] = state  # LEAK

    def _retire(self):
        oldest = min(self._in_use.values(), default=self.version)
        for v in [v for v in self._snapshots if v < oldest]:
            del self._snapshots[v]

    def publish(self, model):
        self.version += 1
        self._keep(self.version, {k: t.detach().clone() for k, t in model.state_dict().items()})
        self._retire()

    def checkout(self, worker, version=None):
        self._in_use[worker] = version or self.version
        return self._in_use[worker]

    def weights(self, version):
        return self._snapshots[version]


def make_policy(obs=48, hidden=256, actions=8):
    return nn.Sequential(nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, actions))


class Worker:
    def __init__(self, name, store):
        self.name, self.store = name, store
        self.policy = make_policy().to("cuda").requires_grad_(False)
        self.loaded = None

    def sync(self):
        version = self.store.checkout(self.name)
        if version != self.loaded:
            self.policy.load_state_dict(self.store.weights(version))
            self.loaded = version

    def rollout(self, n=64):
        self.sync()
        states = torch.randn(n, 48, device="cuda")
        actions = torch.distributions.Categorical(logits=self.policy(states)).sample()
        returns = torch.cos(states[:, :8]).gather(1, actions[:, None])[:, 0]
        return Rollout(self.loaded, states, actions, returns)


class Pool:
    def __init__(self, store, size):
        self.store = store
        self.workers = [Worker(f"worker-{i}", store) for i in range(size)]
        self.started = size

    def replace_unhealthy(self, rng):
        """Spot instances come and go."""
        gone = rng.randrange(len(self.workers))
        self.workers[gone] = Worker(f"worker-{self.started}", self.store)
        self.started += 1

    def collect(self):
        return [w.rollout() for w in self.workers]


class AsyncTrainer:
    def __init__(self, workers=3, seed=0):
        self.rng = random.Random(seed)
        self.policy = make_policy().to("cuda")
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-3)
        self.store = WeightStore()
        self.store.publish(self.policy)
        self.pool = Pool(self.store, workers)

    def update(self, rollouts):
        loss = 0.0
        for r in rollouts:
            logp = F.log_softmax(self.policy(r.states), -1).gather(1, r.actions[:, None])[:, 0]
            loss = loss - (logp * (r.returns - r.returns.mean())).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return torch.cat([r.returns for r in rollouts]).mean().item()

    def fit(self, iterations):
        for it in range(iterations):
            reward = self.update(self.pool.collect())
            self.store.publish(self.policy)
            if it % 45 == 4:
                self.pool.replace_unhealthy(self.rng)
            if it % 30 == 0:
                print(f"{it}: reward {reward:+.3f}, weights v{self.store.version}")


if __name__ == "__main__":
    torch.manual_seed(0)
    AsyncTrainer().fit(150)
