# CARD: 24GiB
# KNOBS: INNER_STEPS=5 META_BATCH=4 SHOTS=5 FIRST_ORDER BACKWARD_EACH AUTOCAST OPT FUSED
# EXPERT: second-order inner loops keep every adaptation step of every task until the one meta backward; backward per task, first-order MAML, fewer inner steps; the outer optimizer does not matter
# Source: adaptation in MAML fills the GPU with each inner step and each task of the meta batch (tristandeleu/pytorch-maml 21, learnables/learn2learn 393, HowToTrainYourMAMLPytorch 25)
import os
from collections import OrderedDict

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

import knobs

N_WAY, K_QUERY = 5, 15
K_SHOT = int(os.environ.get("SHOTS", 5))
META_BATCH = int(os.environ.get("META_BATCH", 4))
INNER_STEPS = int(os.environ.get("INNER_STEPS", 5))
FIRST_ORDER = os.environ.get("FIRST_ORDER", "0") == "1"
BACKWARD_EACH = os.environ.get("BACKWARD_EACH", "0") == "1"
INNER_LR = 0.01


class ResBlock(nn.Module):
    """ResNet-12 block as used for miniImageNet"""

    def __init__(self, cin, cout):
        super().__init__()
        def conv(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False),
                                 nn.BatchNorm2d(b, track_running_stats=False))
        self.c1, self.c2, self.c3 = conv(cin, cout), conv(cout, cout), conv(cout, cout)
        self.short = nn.Conv2d(cin, cout, 1, bias=False)

    def forward(self, x):
        y = F.leaky_relu(self.c1(x), 0.1)
        y = F.leaky_relu(self.c2(y), 0.1)
        return F.max_pool2d(F.leaky_relu(self.c3(y) + self.short(x), 0.1), 2)


class ResNet12(nn.Module):
    def __init__(self, widths=(64, 128, 256, 512)):
        super().__init__()
        chans = (3,) + widths
        self.layers = nn.Sequential(*[ResBlock(a, b) for a, b in zip(chans, chans[1:])])
        self.fc = nn.Linear(widths[-1], N_WAY)

    def forward(self, x):
        return self.fc(self.layers(x).mean((2, 3)))


def sample_task():
    def split(k):
        y = torch.arange(N_WAY).repeat_interleave(k)
        return torch.zeros(len(y), 3, 84, 84).cuda(), y.cuda()
    return split(K_SHOT), split(K_QUERY)


def adapt(model, params, support):
    x, y = support
    for _ in range(INNER_STEPS):
        with knobs.autocast():
            loss = F.cross_entropy(functional_call(model, params, (x,)), y)
        grads = torch.autograd.grad(loss, params.values(), create_graph=not FIRST_ORDER)
        params = OrderedDict((n, p - INNER_LR * g) for (n, p), g in zip(params.items(), grads))
    return params


model = ResNet12().cuda()
meta_optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for it in range(2):
    meta_optimizer.zero_grad()
    outer_loss, accs = 0.0, []
    for task in range(META_BATCH):
        support, (xq, yq) = sample_task()
        fast = adapt(model, OrderedDict(model.named_parameters()), support)
        with knobs.autocast():
            logits = functional_call(model, fast, (xq,))
            query_loss = F.cross_entropy(logits, yq) / META_BATCH
        accs.append((logits.argmax(1) == yq).float().mean())
        if BACKWARD_EACH:
            query_loss.backward()
            outer_loss += query_loss.detach()
        else:
            outer_loss = outer_loss + query_loss
    if not BACKWARD_EACH:
        outer_loss.backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 10.0)
    meta_optimizer.step()
    print(f"[{it}] meta loss {outer_loss.item():.4f} acc {torch.stack(accs).mean().item():.3f}")

print("PEAK", torch.cuda.max_memory_allocated())
