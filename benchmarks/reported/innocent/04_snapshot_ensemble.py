# kind: snapshot ensemble with warm restarts and at most k members; from snapshot-ensemble notebooks
# %%
import copy
import math
import torch
import torch.nn as nn

device = "cuda"
torch.manual_seed(11)
W_true = torch.randn(50, 8)

def batch(n=96):
    x = torch.randn(n, 50)
    return x.to(device), (x @ W_true).argmax(1).to(device)

# %%
def build():
    return nn.Sequential(
        nn.Linear(50, 256), nn.ReLU(),
        nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(256, 8),
    )

def cosine(step, cycle, lr_max):
    return lr_max / 2 * (1 + math.cos(math.pi * (step % cycle) / cycle))

class Ensemble:
    def __init__(self, max_members):
        self.max_members = max_members
        self.members = []

    def add(self, net):
        member = copy.deepcopy(net).eval()
        for p in member.parameters():
            p.grad = None
            p.requires_grad_(False)
        self.members.append(member)
        if len(self.members) > self.max_members:
            del self.members[0]

    @torch.no_grad()
    def predict(self, x):
        return torch.stack([m(x).softmax(-1) for m in self.members]).mean(0)

# %%
CYCLE, LR = 12, 0.1
net = build().to(device)
opt = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
ensemble = Ensemble(max_members=4)

for step in range(144):
    for g in opt.param_groups:
        g["lr"] = cosine(step, CYCLE, LR)
    x, y = batch()
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % CYCLE == CYCLE - 1:
        ensemble.add(net)
        xv, yv = batch(256)
        acc = (ensemble.predict(xv).argmax(1) == yv).float().mean().item()
        print(f"cycle {step // CYCLE}: loss {loss.item():.3f} members {len(ensemble.members)} acc {acc:.3f}")
