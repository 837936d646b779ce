# kind: replay memory on the GPU fills up to its maxlen; from DQN issues
import random
from collections import deque, namedtuple
import torch
import torch.nn as nn

Transition = namedtuple("Transition", "state action reward next_state")


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, n):
        return Transition(*zip(*random.sample(self.memory, n)))

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self, actions=4):
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 8, stride=8)
        self.fc = nn.Linear(8 * 8 * 8, 64)
        self.q = nn.Linear(64, actions)

    def forward(self, x):
        x = torch.relu(self.conv(x)).flatten(1)
        return self.q(torch.relu(self.fc(x)))


class FrameEnv:
    def __init__(self, device):
        self.device = device
        self.frames = torch.rand(1, 4, 64, 64, device=device)

    def step(self, action):
        new = torch.rand(1, 1, 64, 64, device=self.device)
        self.frames = torch.cat([self.frames[:, 1:], new], dim=1)
        return self.frames, torch.tensor([float(action == 2)], device=self.device)


device = torch.device("cuda")
random.seed(0)
policy, target = DQN().to(device), DQN().to(device)
target.load_state_dict(policy.state_dict())
opt = torch.optim.AdamW(policy.parameters(), lr=1e-3, amsgrad=True)
memory = ReplayMemory(240)
env = FrameEnv(device)
state = env.frames
BATCH, GAMMA = 24, 0.95

for it in range(130):
    for _ in range(6):
        with torch.no_grad():
            greedy = policy(state).argmax(1).item()
        a = random.randrange(4) if random.random() < 0.3 else greedy
        nxt, r = env.step(a)
        memory.push(state, a, r, nxt)
        state = nxt
    if len(memory) < BATCH:
        continue
    b = memory.sample(BATCH)
    s, s2 = torch.cat(b.state), torch.cat(b.next_state)
    q = policy(s).gather(1, torch.tensor(b.action, device=device)[:, None]).squeeze(1)
    with torch.no_grad():
        goal = torch.cat(b.reward) + GAMMA * target(s2).max(1).values
    loss = nn.functional.smooth_l1_loss(q, goal)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy.parameters(), 100)
    opt.step()
    if it % 10 == 0:
        target.load_state_dict(policy.state_dict())
    if it % 40 == 0:
        print(f"it {it} loss {loss.item():.4f} memory {len(memory)}")
