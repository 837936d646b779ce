# kind: oxwhirl/pymarl PR #73 "Fix memory leak": Logger.log_stat keeps every stat it gets, and the learner logs tensors
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F

N_AGENTS, OBS, ACTIONS, EP_LEN, BATCH = 8, 96, 14, 25, 32


class Logger:
    def __init__(self):
        self.stats = defaultdict(list)

    def log_stat(self, key, value, t):
        self.stats[key].append((t, value))  # LEAK

    def print_recent_stats(self):
        lines = []
        for k in sorted(self.stats):
            lines.append("{}: {:.4f}".format(k, float(self.stats[k][-1][1])))
        print(" | ".join(lines))


class RNNAgent(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.fc1 = nn.Linear(OBS, hidden)
        self.rnn = nn.GRUCell(hidden, hidden)
        self.fc2 = nn.Linear(hidden, ACTIONS)
        self.hidden = hidden

    def forward(self, obs, h):
        h = self.rnn(F.relu(self.fc1(obs)), h)
        return self.fc2(h), h


class QLearner:
    def __init__(self, logger, lr=5e-4):
        self.mac, self.target = RNNAgent().cuda(), RNNAgent().cuda()
        self.logger = logger
        self.optim = torch.optim.RMSprop(self.mac.parameters(), lr=lr)

    def unroll(self, agent, obs):
        h = torch.zeros(BATCH * N_AGENTS, agent.hidden, device="cuda")
        qs = []
        for t in range(obs.size(1)):
            q, h = agent(obs[:, t].reshape(-1, OBS), h)
            qs.append(q.view(BATCH, N_AGENTS, ACTIONS))
        return torch.stack(qs, 1)

    def train(self, batch, t_env):
        obs, actions, rew = batch
        q = self.unroll(self.mac, obs)
        chosen = q.gather(3, actions).squeeze(3)
        with torch.no_grad():
            target = rew + 0.99 * self.unroll(self.target, obs).max(3)[0]
        td = chosen[:, :-1] - target[:, 1:]
        loss = (td ** 2).mean()
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        self.logger.log_stat("loss", loss.item(), t_env)
        self.logger.log_stat("td_error_abs", td.abs().mean().item(), t_env)
        self.logger.log_stat("q_taken_mean", chosen, t_env)  # ALSO


logger = Logger()
learner = QLearner(logger)
for episode in range(80):
    obs = torch.randn(BATCH, EP_LEN, N_AGENTS, OBS, device="cuda")
    actions = torch.randint(ACTIONS, (BATCH, EP_LEN, N_AGENTS, 1), device="cuda")
    learner.train((obs, actions, torch.rand(BATCH, EP_LEN, N_AGENTS, device="cuda")), episode * EP_LEN)
print("done", torch.cuda.memory_allocated() >> 20, "MiB")
