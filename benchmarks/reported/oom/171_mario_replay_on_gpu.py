# CARD: 4GiB
# KNOBS: CPU_OUTPUTS=1 (replay memory on the CPU), DTYPE=uint8 (replay memory), BUFFER=<entries>, BATCH=<entries per learning step>, AUTOCAST=1
# EXPERT: the replay memory holds every observation on the GPU in float32: keep it on the CPU (or as uint8) and move the sampled batch; or a shorter deque
# from: https://github.com/pytorch/tutorials/issues/1620
import atexit
import copy
import os
import random
from collections import deque

import torch
from torch import nn

atexit.register(lambda: print("PEAK", torch.cuda.max_memory_allocated()))


class VectorEnv:
    """stands for 32 copies of SuperMarioBros-1-1-v0: 4 stacked grey frames of 84 x 84"""

    def __init__(self, n=32):
        self.n = n
        self.frames = torch.randint(0, 256, (n, 4, 84, 84), dtype=torch.uint8)

    def reset(self):
        return self.frames

    def step(self, action):
        reward = torch.rand(self.n)
        done = torch.zeros(self.n, dtype=torch.bool)
        return self.frames, reward, done, {}


class MarioNet(nn.Module):
    def __init__(self, actions):
        super().__init__()
        self.online = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions),
        )
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad = False

    def forward(self, x, model):
        return self.online(x) if model == "online" else self.target(x)


class Mario:
    def __init__(self, actions=7):
        self.net = MarioNet(actions).float().to("cuda")
        self.actions = actions
        self.memory = deque(maxlen=int(os.environ.get("BUFFER", 700)))
        self.batch_size = int(os.environ.get("BATCH", 4))  # entries of 32 transitions
        self.gamma, self.burnin, self.sync_every = 0.9, 50, 200
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.00025)
        self.loss_fn = nn.SmoothL1Loss()
        self.curr_step = 0
        self.store_device = "cpu" if os.environ.get("CPU_OUTPUTS") == "1" else "cuda"
        self.store_dtype = torch.uint8 if os.environ.get("DTYPE") == "uint8" else torch.float32

    def act(self, state):
        self.curr_step += 1
        if random.random() < 0.1:
            return torch.randint(0, self.actions, (len(state),))
        with torch.no_grad():
            q = self.net(state.to("cuda").float() / 255, model="online")
        return q.argmax(1).cpu()

    def cache(self, *experience):
        state, next_state, action, reward, done = (torch.as_tensor(t) for t in experience)
        keep = dict(device=self.store_device, dtype=self.store_dtype, copy=True)
        self.memory.append((state.to(**keep), next_state.to(**keep), action.to(self.store_device),
                            reward.to(self.store_device), done.to(self.store_device)))

    def recall(self):
        batch = random.sample(self.memory, self.batch_size)
        state, next_state, action, reward, done = (torch.cat(t).to("cuda") for t in zip(*batch))
        return state.float() / 255, next_state.float() / 255, action, reward, done

    def learn(self):
        if self.curr_step % self.sync_every == 0:
            self.net.target.load_state_dict(self.net.online.state_dict())
        if self.curr_step < self.burnin:
            return None
        state, next_state, action, reward, done = self.recall()
        with torch.autocast("cuda", torch.bfloat16, enabled=os.environ.get("AUTOCAST") == "1"):
            td_est = self.net(state, model="online").gather(1, action[:, None]).squeeze(1)
            with torch.no_grad():
                best = self.net(next_state, model="online").argmax(1)
                next_q = self.net(next_state, model="target").gather(1, best[:, None]).squeeze(1)
                td_tgt = reward + (1 - done.float()) * self.gamma * next_q.float()
            loss = self.loss_fn(td_est.float(), td_tgt)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


env, mario = VectorEnv(), Mario()
state = env.reset()
for step in range(800):
    action = mario.act(state)
    next_state, reward, done, info = env.step(action)
    mario.cache(state, next_state, action, reward, done)
    loss = mario.learn()
    state = next_state
    if step % 200 == 0:
        print("step", step, "loss", loss, "memory", len(mario.memory))
