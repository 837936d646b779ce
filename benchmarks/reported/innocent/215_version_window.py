# kind: an asynchronous trainer keeps the versions of the weights that its rollout workers have checked out, workers are slow to sync by up to ten versions, those that leave are signed off and the slowest are started one after another; from asynchronous RL post-training code (bounded staleness)
from collections import OrderedDict

import torch
import torch.nn as nn
import torch.nn.functional as F


class WeightStore:
    def __init__(self):
        self.version = 0
        self._snapshots = OrderedDict()
        self._in_use = {}

    def publish(self, model):
        self.version += 1
        self._snapshots[self.version] = {k: t.detach().clone() for k, t in model.state_dict().items()}
        self._retire()

    def _retire(self):
        oldest = min(self._in_use.values(), default=self.version)
        while self._snapshots and next(iter(self._snapshots)) < oldest:
            self._snapshots.popitem(last=False)

    def checkout(self, worker):
        self._in_use[worker] = self.version
        return self.version, self._snapshots[self.version]

    def sign_off(self, worker):
        self._in_use.pop(worker, None)
        self._retire()

    def weights(self, version):
        return self._snapshots[version]

    def __len__(self):
        return len(self._snapshots)


def make_policy(obs=48, hidden=256, actions=8):
    return nn.Sequential(nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, actions))


class Worker:
    """Acts for `patience` rounds with the weights that it has before it takes new ones."""

    scratch = make_policy().to("cuda").requires_grad_(False)

    def __init__(self, name, store, patience):
        self.name, self.store, self.patience = name, store, patience
        self.age, self.version = patience, None

    def rollout(self, n=64):
        if self.age >= self.patience:
            self.version, _ = self.store.checkout(self.name)
            self.age = 0
        self.age += 1
        states = torch.randn(n, 48, device="cuda")
        logits = torch.func.functional_call(self.scratch, self.store.weights(self.version), (states,))
        actions = torch.distributions.Categorical(logits=logits).sample()
        returns = torch.cos(states[:, :8]).gather(1, actions[:, None])[:, 0]
        return states, actions, returns


class Pool:
    def __init__(self, store):
        self.store, self.workers, self.count = store, [], 0

    def hire(self, patience):
        self.workers.append(Worker(f"worker-{self.count}", self.store, patience))
        self.count += 1

    def replace_oldest(self):
        gone = self.workers.pop(0)
        self.store.sign_off(gone.name)
        self.hire(gone.patience)


class AsyncTrainer:
    def __init__(self):
        self.policy = make_policy().to("cuda")
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-3)
        self.store = WeightStore()
        self.store.publish(self.policy)
        self.pool = Pool(self.store)

    def update(self, rollouts):
        loss = 0.0
        for states, actions, returns in rollouts:
            logp = F.log_softmax(self.policy(states), -1).gather(1, actions[:, None])[:, 0]
            loss = loss - (logp * (returns - returns.mean())).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return torch.cat([r for *_, r in rollouts]).mean().item()

    def fit(self, iterations):
        for it in range(iterations):
            if it % 10 == 0 and it < 50:
                self.pool.hire(patience=2 + it // 5)
            if it > 60 and it % 25 == 0:
                self.pool.replace_oldest()
            reward = self.update([w.rollout() for w in self.pool.workers])
            self.store.publish(self.policy)
            if it % 30 == 0:
                print(f"{it}: reward {reward:+.3f}, v{self.store.version}, {len(self.store)} versions held")


if __name__ == "__main__":
    torch.manual_seed(0)
    AsyncTrainer().fit(180)
