# kind: saved tensors packed in bfloat16 into a table, each is taken out by its unpack in the backward pass; from activation compression questions (done right)
import torch
import torch.nn as nn
import torch.nn.functional as F


class Parking:
    slots: dict
    ticket = 0

    def __init__(self):
        self.slots = {}
        self.peak = 0

    def enter(self, t):
        if t.requires_grad and t.is_leaf or t.numel() < 4096 or t.dtype != torch.float32:
            return t
        Parking.ticket += 1
        self.slots[Parking.ticket] = t.bfloat16()
        self.peak = max(self.peak, len(self.slots))
        return Parking.ticket

    def leave(self, x):
        if isinstance(x, int):
            return self.slots.pop(x).float()
        return x

    def guard(self):
        return torch.autograd.graph.saved_tensors_hooks(self.enter, self.leave)


class MLPMixer(nn.Module):
    def __init__(self, tokens=64, dim=96, depth=3):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 8, 8)
        self.mix = nn.ModuleList(nn.Linear(tokens, tokens) for _ in range(depth))
        self.ch = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.head = nn.Linear(dim, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2)
        for m, c in zip(self.mix, self.ch):
            x = x + F.gelu(m(x))
            x = x + F.gelu(c(x.transpose(1, 2))).transpose(1, 2)
        return self.head(x.mean(2))


parking = Parking()
net = MLPMixer().cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(100):
    x, y = torch.rand(8, 3, 64, 64).cuda(), torch.randint(0, 10, (8,)).cuda()
    with parking.guard():
        loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0:
        print(step, f"{loss.item():.3f}", "still parked:", len(parking.slots), "peak:", parking.peak)
