# CARD: 4GiB
# KNOBS: BATCH=<tasks per outer step>, INNER=<inner steps>, FIRST_ORDER=1, CHECKPOINT=1, AUTOCAST=1
# EXPERT: every task's second-order graph is kept until the one backward: call backward() per task (fewer tasks at once, accumulate); else fewer inner steps or first order
# from: https://github.com/tristandeleu/pytorch-maml/issues/21
import atexit
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

atexit.register(lambda: print("PEAK", torch.cuda.max_memory_allocated()))

TASKS = int(os.environ.get("BATCH", 4))
INNER = int(os.environ.get("INNER", 5))
FIRST_ORDER = os.environ.get("FIRST_ORDER") == "1"
CHECKPOINT = bool(os.environ.get("CHECKPOINT"))
AUTOCAST = os.environ.get("AUTOCAST") == "1"
WAYS, SHOTS, QUERIES, INNER_LR = 5, 5, 15, 0.01
device = torch.device("cuda")


def conv_block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1),
        nn.GroupNorm(8, cout),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


class Conv4(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.blocks = nn.ModuleList([conv_block(3, hidden)] + [conv_block(hidden, hidden) for _ in range(3)])
        self.classifier = nn.Linear(hidden * 25, WAYS)

    def forward(self, x):
        for block in self.blocks:
            if CHECKPOINT:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.classifier(x.flatten(1))


def episode_batch():
    """miniImageNet-like episodes, tasks x samples x 3 x 84 x 84"""
    for _ in range(TASKS):
        xs = torch.randn(WAYS * SHOTS, 3, 84, 84, device=device)
        ys = torch.arange(WAYS, device=device).repeat_interleave(SHOTS)
        xq = torch.randn(WAYS * QUERIES, 3, 84, 84, device=device)
        yq = torch.arange(WAYS, device=device).repeat_interleave(QUERIES)
        yield xs, ys, xq, yq


def adapt(model, params, xs, ys):
    for _ in range(INNER):
        logits = functional_call(model, params, (xs,))
        inner_loss = F.cross_entropy(logits.float(), ys)
        grads = torch.autograd.grad(inner_loss, list(params.values()), create_graph=not FIRST_ORDER)
        params = {name: p - INNER_LR * g for (name, p), g in zip(params.items(), grads)}
    return params


def train():
    model = Conv4().to(device)
    meta_opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(4):
        meta_opt.zero_grad()
        outer_loss = torch.zeros((), device=device)
        correct = torch.zeros((), device=device)
        for xs, ys, xq, yq in episode_batch():
            with torch.autocast("cuda", torch.bfloat16, enabled=AUTOCAST):
                fast = adapt(model, dict(model.named_parameters()), xs, ys)
                logits = functional_call(model, fast, (xq,))
                outer_loss = outer_loss + F.cross_entropy(logits.float(), yq)
            correct += (logits.argmax(-1) == yq).float().mean().detach()
        outer_loss.div_(TASKS).backward()
        meta_opt.step()
        print(f"step {step} loss {outer_loss.item():.3f} acc {correct.item() / TASKS:.3f}")


if __name__ == "__main__":
    train()
