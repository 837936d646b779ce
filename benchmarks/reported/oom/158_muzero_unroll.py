# CARD: 10GiB
# KNOBS: BATCH=128,256 CHECKPOINT=ResidualBlock,Representation,Dynamics AUTOCAST=1
# EXPERT: the graph spans the representation and five unrolled dynamics steps; a smaller batch, or checkpoint the residual blocks
# in the manner of an issue of a muzero-general fork, Atari configuration on an RTX 3080
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

CKPT = os.environ.get("CHECKPOINT", "none")


class Ckpt(nn.Module):
    def __call__(self, *args):
        if type(self).__name__ == CKPT and torch.is_grad_enabled():
            return checkpoint(super().__call__, *args, use_reentrant=False)
        return super().__call__(*args)


class ResidualBlock(Ckpt):
    def __init__(self, ch):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(ch, ch, 3, padding=1, bias=False), nn.BatchNorm2d(ch)
        self.conv2, self.bn2 = nn.Conv2d(ch, ch, 3, padding=1, bias=False), nn.BatchNorm2d(ch)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + x)


class Representation(Ckpt):
    def __init__(self, cin, ch, blocks):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(cin, ch // 2, 3, 2, 1, bias=False), ResidualBlock(ch // 2),
                                 nn.Conv2d(ch // 2, ch, 3, 2, 1, bias=False), ResidualBlock(ch), nn.AvgPool2d(3, 2, 1),
                                 ResidualBlock(ch), nn.AvgPool2d(3, 2, 1), *[ResidualBlock(ch) for _ in range(blocks)])

    def forward(self, obs):
        s = self.net(obs)
        lo, hi = s.amin((2, 3), keepdim=True), s.amax((2, 3), keepdim=True)
        return (s - lo) / (hi - lo + 1e-5)


class Dynamics(Ckpt):
    def __init__(self, ch, blocks, actions, support):
        super().__init__()
        self.actions = actions
        self.conv, self.bn = nn.Conv2d(ch + 1, ch, 3, padding=1, bias=False), nn.BatchNorm2d(ch)
        self.blocks = nn.Sequential(*[ResidualBlock(ch) for _ in range(blocks)])
        self.reward = nn.Sequential(nn.Conv2d(ch, 16, 1), nn.Flatten(), nn.Linear(16 * 36, 256), nn.ELU(),
                                    nn.Linear(256, support))

    def forward(self, s, a):
        plane = (a.float() / self.actions)[:, None, None, None].expand(-1, 1, 6, 6)
        s = self.blocks(F.relu(self.bn(self.conv(torch.cat([s, plane], 1)))))
        return s, self.reward(s)


class MuZero(nn.Module):
    def __init__(self, ch=256, blocks=8, actions=18, support=601):
        super().__init__()
        self.h, self.g = Representation(128, ch, blocks), Dynamics(ch, blocks, actions, support)
        self.f = nn.ModuleDict({
            "policy": nn.Sequential(nn.Conv2d(ch, 16, 1), nn.Flatten(), nn.Linear(16 * 36, actions)),
            "value": nn.Sequential(nn.Conv2d(ch, 16, 1), nn.Flatten(), nn.Linear(16 * 36, support))})


class ReplayBuffer:
    def __init__(self, batch, unroll):
        self.batch, self.unroll = batch, unroll

    def sample(self):
        b, k = self.batch, self.unroll
        return (torch.zeros(b, 128, 96, 96, dtype=torch.uint8), torch.randint(0, 18, (b, k)),
                torch.rand(b, k + 1, 601), torch.rand(b, k + 1, 601), torch.rand(b, k + 1, 18))


def soft_ce(logits, target):
    return -(target * logits.float().log_softmax(-1)).sum(-1).mean()


def learn(net, opt, buffer):
    obs, acts, value, reward, policy = (t.cuda() for t in buffer.sample())
    with torch.autocast("cuda", torch.bfloat16, enabled=os.environ.get("AUTOCAST") == "1"):
        s = net.h(obs.float() / 255)
        loss = soft_ce(net.f["value"](s), value[:, 0]) + soft_ce(net.f["policy"](s), policy[:, 0])
        for k in range(acts.shape[1]):
            s, r = net.g(s, acts[:, k])
            s.register_hook(lambda grad: grad * 0.5)
            loss = loss + (soft_ce(r, reward[:, k + 1]) + soft_ce(net.f["value"](s), value[:, k + 1])
                           + soft_ce(net.f["policy"](s), policy[:, k + 1])) / acts.shape[1]
    opt.zero_grad()
    loss.backward()
    opt.step()


net = MuZero().cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
buffer = ReplayBuffer(int(os.environ.get("BATCH", 640)), 5)
for _ in range(3):
    learn(net, opt, buffer)
print("PEAK", torch.cuda.max_memory_allocated())
