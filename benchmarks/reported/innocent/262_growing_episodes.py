# kind: innocent, REINFORCE keeps log-probabilities with graph for the whole episode, episodes become longer up to a limit and the lists are cleared after each update; in the manner of pytorch/examples reinforce.py
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

parser = argparse.ArgumentParser(description="REINFORCE on a vectorised reach task")
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--envs", type=int, default=64)
parser.add_argument("--episodes", type=int, default=16)
parser.add_argument("--min-steps", type=int, default=4)
parser.add_argument("--max-steps", type=int, default=20)
parser.add_argument("--seed", type=int, default=543)


class Policy(nn.Module):
    def __init__(self, obs=6, hidden=128, actions=4):
        super().__init__()
        self.affine1 = nn.Linear(obs, hidden)
        self.affine2 = nn.Linear(hidden, actions)
        self.saved_log_probs = []
        self.entropies = []
        self.rewards = []

    def forward(self, x):
        return F.log_softmax(self.affine2(F.relu(self.affine1(x))), dim=1)


class Reach:
    MOVES = [(1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)]

    def __init__(self, n, device):
        self.n, self.device = n, device
        self.moves = torch.tensor(self.MOVES, device=device) * 0.1

    def reset(self):
        self.pos = torch.zeros(self.n, 2, device=self.device)
        self.goal = torch.rand(self.n, 2, device=self.device) * 2 - 1
        return self.obs()

    def obs(self):
        return torch.cat([self.pos, self.goal, self.goal - self.pos], 1)

    def step(self, action):
        self.pos = self.pos + self.moves[action]
        return self.obs(), -(self.goal - self.pos).norm(dim=1)


def select_action(policy, state):
    log_probs = policy(state)
    u = torch.rand_like(log_probs).clamp(1e-6, 1 - 1e-6)
    action = (log_probs.detach() - (-u.log()).log()).argmax(1)
    policy.saved_log_probs.append(log_probs.gather(1, action[:, None]).squeeze(1))
    policy.entropies.append(-(log_probs.exp() * log_probs).sum(1))
    return action


def finish_episode(policy, optimizer, gamma):
    R, returns = 0, []
    for r in policy.rewards[::-1]:
        R = r + gamma * R
        returns.insert(0, R)
    returns = torch.stack(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = -(torch.stack(policy.saved_log_probs) * returns).mean() - 0.01 * torch.stack(policy.entropies).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del policy.rewards[:], policy.saved_log_probs[:], policy.entropies[:]
    return loss.item()


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    env, policy = Reach(args.envs, "cuda"), Policy().cuda()
    optimizer = optim.Adam(policy.parameters(), lr=1e-2)
    for i in range(args.episodes):
        steps = min(args.max_steps, args.min_steps + 2 * i)
        state, total = env.reset(), 0.0
        for _ in range(steps):
            state, reward = env.step(select_action(policy, state))
            policy.rewards.append(reward)
            total += reward.mean().item()
        loss = finish_episode(policy, optimizer, args.gamma)
        if i % 4 == 3:
            print(f"Episode {i + 1}\tsteps {steps}\treturn {total:.2f}\tloss {loss:.4f}")


if __name__ == "__main__":
    main()
