# kind: innocent, replay deque with maxlen on the GPU fills up and then drops the oldest; from vwxyzjn/cleanrl, DLR-RM/stable-baselines3 replay buffers
import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F


class CatchEnv:
    def __init__(self, size=40, device="cuda"):
        self.size, self.device = size, device
        self.rng = random.Random(0)
        self.reset()

    def reset(self):
        self.ball = [0, self.rng.randrange(self.size)]
        self.paddle = self.size // 2
        return self._render()

    def _render(self):
        img = torch.zeros(2, self.size, self.size, device=self.device)
        img[0, self.ball[0], self.ball[1]] = 1
        img[1, -1, max(self.paddle - 2, 0) : self.paddle + 3] = 1
        return img

    def step(self, action):
        self.paddle = min(max(self.paddle + 2 * (action - 1), 0), self.size - 1)
        self.ball[0] += 2
        done = self.ball[0] >= self.size - 2
        reward = 1.0 if done and abs(self.ball[1] - self.paddle) < 4 else 0.0
        return self._render(), reward, done


def q_network():
    return nn.Sequential(nn.Conv2d(2, 8, 8, 4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 81, 64), nn.ReLU(),
                         nn.Linear(64, 3))


class DQN:
    def __init__(self, buffer_size=90, batch_size=16, gamma=0.98):
        self.q, self.target = q_network().cuda(), q_network().cuda()
        self.target.load_state_dict(self.q.state_dict())
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=1e-3)
        self.replay = deque(maxlen=buffer_size)
        self.batch_size, self.gamma = batch_size, gamma

    def predict(self, obs, eps):
        if random.random() < eps:
            return random.randrange(3)
        with torch.no_grad():
            return self.q(obs.unsqueeze(0)).argmax().item()

    def train(self):
        if len(self.replay) < self.batch_size:
            return None
        obs, act, rew, nxt, done = zip(*random.sample(self.replay, self.batch_size))
        act = torch.tensor(act, device="cuda")[:, None]
        rew, done = torch.tensor(rew, device="cuda"), torch.tensor(done, device="cuda").float()
        with torch.no_grad():
            y = rew + self.gamma * (1 - done) * self.target(torch.stack(nxt)).amax(1)
        loss = F.smooth_l1_loss(self.q(torch.stack(obs)).gather(1, act)[:, 0], y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def learn(self, env, total_timesteps):
        obs, rewards = env.reset(), []
        for t in range(total_timesteps):
            action = self.predict(obs, eps=max(0.1, 1 - t / 150))
            nxt, rew, done = env.step(action)
            self.replay.append((obs, action, rew, nxt, done))
            obs = env.reset() if done else nxt
            if done:
                rewards.append(rew)
            self.train()
            if t % 40 == 0:
                self.target.load_state_dict(self.q.state_dict())
        return sum(rewards) / max(len(rewards), 1)


if __name__ == "__main__":
    random.seed(1)
    torch.manual_seed(1)
    print("mean catch rate", DQN().learn(CatchEnv(), 300))
