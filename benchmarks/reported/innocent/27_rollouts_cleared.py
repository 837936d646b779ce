# kind: rollout of a recurrent agent appended step by step with its states, used for a few epochs and cleared; from PPO-PyTorch memory questions
from dataclasses import dataclass, field, fields
import torch
import torch.nn as nn


@dataclass
class Storage:
    obs: list = field(default_factory=list)
    hidden: list = field(default_factory=list)
    logp: list = field(default_factory=list)
    reward: list = field(default_factory=list)

    def add(self, **kw):
        for k, v in kw.items():
            getattr(self, k).append(v)

    def stacked(self):
        return {f.name: torch.stack(getattr(self, f.name)) for f in fields(self)}

    def clear(self):
        for f in fields(self):
            getattr(self, f.name).clear()


class Agent(nn.Module):
    def __init__(self, obs=64, hid=128, act=5):
        super().__init__()
        self.cell = nn.GRUCell(obs, hid)
        self.pi = nn.Linear(hid, act)
        self.v = nn.Linear(hid, 1)
        self.hid = hid

    def forward(self, o, h):
        h = self.cell(o, h)
        return self.pi(h).log_softmax(-1), self.v(h).squeeze(-1), h


def play(agent, store, h, n_steps, n_env):
    with torch.no_grad():
        for _ in range(n_steps):
            o = torch.randn(n_env, 64).cuda()
            logp, _, h2 = agent(o, h)
            store.add(obs=o, hidden=h, logp=logp[:, 0], reward=o[:, 0])
            h = h2
    return h


def learn(agent, opt, batch, epochs=2):
    ret = batch["reward"].flip(0).cumsum(0).flip(0)
    for _ in range(epochs):
        o, h = batch["obs"].flatten(0, 1), batch["hidden"].flatten(0, 1)
        logp, v, _ = agent(o, h)
        adv = ret.flatten() - v
        loss = -((logp[:, 0] - batch["logp"].flatten()).exp() * adv.detach()).mean() + adv.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        opt.step()
    return loss.item()


agent = Agent().cuda()
opt = torch.optim.Adam(agent.parameters(), lr=3e-4)
memory = Storage()
h = torch.zeros(128, agent.hid).cuda()
curve = []
for update in range(14):
    h = play(agent, memory, h, n_steps=16, n_env=128)
    curve.append(learn(agent, opt, memory.stacked()))
    memory.clear()
print("updates", len(curve), "first and last loss", curve[0], curve[-1])
