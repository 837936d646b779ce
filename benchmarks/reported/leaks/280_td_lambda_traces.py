# kind: eligibility traces of online TD(lambda) that carry the graph of create_graph=True; in the manner of a reinforcement-learning subreddit question
import torch
import torch.nn as nn


class ValueNet(nn.Module):
    def __init__(self, obs=10, hidden=128):
        super().__init__()
        self.l1, self.l2 = nn.Linear(obs, hidden), nn.Linear(hidden, 1)

    def forward(self, s):
        return self.l2(torch.tanh(self.l1(s))).squeeze(-1)


class RandomWalkEnv:
    def __init__(self, n=24):
        self.n = n
        self.s = torch.zeros(n, 10)

    def step(self):
        self.s = 0.9 * self.s + 0.3 * torch.randn(self.n, 10)
        return self.s, self.s.sum(1) * 0.1


class TDLambda:
    def __init__(self, net, gamma=0.95, lam=0.8, lr=1e-3, penalty=1e-4):
        self.net, self.gamma, self.lam, self.lr, self.penalty = net, gamma, lam, lr, penalty
        self.traces = [torch.zeros_like(p) for p in net.parameters()]

    def update(self, s, r, s2):
        params = list(self.net.parameters())
        v = self.net(s)
        grads = torch.autograd.grad(v.mean(), params, create_graph=True)
        self.traces = [self.gamma * self.lam * e + g for e, g in zip(self.traces, grads)]  # LEAK
        with torch.no_grad():
            delta = (r + self.gamma * self.net(s2) - v).mean()
            for p, e in zip(params, self.traces):
                p.add_(self.lr * (delta * e.detach() - self.penalty * p))
        return delta.item()


def main(steps=400):
    torch.manual_seed(0)
    env, agent = RandomWalkEnv(), TDLambda(ValueNet().cuda())
    s, _ = env.step()
    s = s.cuda()
    err = 0.0
    for _ in range(steps):
        s2, r = env.step()
        s2 = s2.cuda()
        err += abs(agent.update(s, r.cuda(), s2))
        s = s2
    print("mean |delta|", err / steps)


if __name__ == "__main__":
    main()
