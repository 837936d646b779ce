# CARD: 4GiB
# KNOBS: MEMORY=100000 DATA_ON_CPU BATCH=32
# EXPERT: cache() puts every transition (state and next_state, 4x84x84 floats each) on the GPU, so the replay memory of 100000 grows until the card is full; keep the deque on the CPU (as uint8) and move only the sampled batch, or a smaller maxlen; the batch size does not matter
# after pytorch/tutorials issue 1620 (https://github.com/pytorch/tutorials/issues/1620), mario_rl_tutorial.py
import copy
import os
import random
from collections import deque

import numpy as np
import torch
from torch import nn

import knobs

FRAMES = 24000  # of all episodes together


class FakeMario:
    """SuperMarioBros-1-1-v0 behind SkipFrame, GrayScaleObservation, ResizeObservation(84), FrameStack(4)"""

    def __init__(self):
        self.pool = [np.random.rand(4, 84, 84).astype(np.float32) for _ in range(32)]
        self.t = 0

    def reset(self):
        self.t = 0
        return random.choice(self.pool)

    def step(self, action):
        self.t += 1
        return random.choice(self.pool), random.random(), self.t >= 400, {"flag_get": False}


class MarioNet(nn.Module):
    def __init__(self, input_dim, output_dim):
        super().__init__()
        c, h, w = input_dim
        self.online = nn.Sequential(
            nn.Conv2d(in_channels=c, out_channels=32, kernel_size=8, stride=4), nn.ReLU(),
            nn.Conv2d(in_channels=32, out_channels=64, kernel_size=4, stride=2), nn.ReLU(),
            nn.Conv2d(in_channels=64, out_channels=64, kernel_size=3, stride=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, output_dim))
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad = False

    def forward(self, input, model):
        return self.online(input) if model == "online" else self.target(input)


class Mario:
    def __init__(self, state_dim, action_dim):
        self.state_dim, self.action_dim = state_dim, action_dim
        self.use_cuda = torch.cuda.is_available()
        self.net = MarioNet(self.state_dim, self.action_dim).float()
        if self.use_cuda:
            self.net = self.net.to(device="cuda")
        self.exploration_rate = 1
        self.exploration_rate_decay = 0.99999975
        self.exploration_rate_min = 0.1
        self.curr_step = 0
        self.memory = deque(maxlen=int(os.environ.get("MEMORY", 100000)))
        self.batch_size = int(os.environ.get("BATCH", 32))
        self.gamma = 0.9
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.00025)
        self.loss_fn = torch.nn.SmoothL1Loss()
        self.burnin = 1e4  # min. experiences before training
        self.learn_every = 3
        self.sync_every = 1e4

    def act(self, state):
        if np.random.rand() < self.exploration_rate:
            action_idx = np.random.randint(self.action_dim)
        else:
            state = torch.tensor(state).cuda().unsqueeze(0)
            action_idx = torch.argmax(self.net(state, model="online"), axis=1).item()
        self.exploration_rate = max(self.exploration_rate_min, self.exploration_rate * self.exploration_rate_decay)
        self.curr_step += 1
        return action_idx

    def cache(self, state, next_state, action, reward, done):
        state = knobs.data(torch.tensor(state))
        next_state = knobs.data(torch.tensor(next_state))
        action = knobs.data(torch.tensor([action]))
        reward = knobs.data(torch.tensor([reward]))
        done = knobs.data(torch.tensor([done]))
        self.memory.append((state, next_state, action, reward, done))

    def recall(self):
        batch = random.sample(self.memory, self.batch_size)
        state, next_state, action, reward, done = map(torch.stack, zip(*batch))
        return state.cuda(), next_state.cuda(), action.squeeze().cuda(), reward.squeeze().cuda(), done.squeeze().cuda()

    def td_estimate(self, state, action):
        return self.net(state, model="online")[torch.arange(0, self.batch_size, device="cuda"), action]

    @torch.no_grad()
    def td_target(self, reward, next_state, done):
        next_state_Q = self.net(next_state, model="online")
        best_action = torch.argmax(next_state_Q, axis=1)
        next_Q = self.net(next_state, model="target")[torch.arange(0, self.batch_size, device="cuda"), best_action]
        return (reward + (1 - done.float()) * self.gamma * next_Q).float()

    def learn(self):
        if self.curr_step % self.sync_every == 0:
            self.net.target.load_state_dict(self.net.online.state_dict())
        if self.curr_step < self.burnin or self.curr_step % self.learn_every != 0:
            return None, None
        state, next_state, action, reward, done = self.recall()
        td_est = self.td_estimate(state, action)
        td_tgt = self.td_target(reward, next_state, done)
        loss = self.loss_fn(td_est, td_tgt)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return td_est.mean().item(), loss.item()


def main():
    env = FakeMario()
    mario = Mario(state_dim=(4, 84, 84), action_dim=2)
    e = 0
    while mario.curr_step < FRAMES:
        state = env.reset()
        while True:
            action = mario.act(state)
            next_state, reward, done, info = env.step(action)
            mario.cache(state, next_state, action, reward, done)
            q, loss = mario.learn()
            state = next_state
            if done or info["flag_get"]:
                break
        e += 1
        if e % 10 == 0:
            print(f"Episode {e} - Step {mario.curr_step} - Epsilon {mario.exploration_rate:.4f} - Mean Loss {loss}")
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
