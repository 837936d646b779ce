# kind: https://github.com/pytorch/pytorch/issues/64586: meta-learning, backward(create_graph=True) on a copy of the net makes cycles of grads and graphs
import copy

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"
WAYS, SHOTS, QUERIES = 5, 5, 15


def conv_block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(8, cout), nn.Softplus(), nn.MaxPool2d(2))


class FewShotNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.features = nn.Sequential(conv_block(3, width), conv_block(width, width), conv_block(width, width))
        self.head = nn.Linear(width * 16, WAYS)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def sample_task():
    xs = torch.randn(WAYS * SHOTS, 3, 32, 32, device=device)
    ys = torch.arange(WAYS, device=device).repeat_interleave(SHOTS)
    xq = torch.randn(WAYS * QUERIES, 3, 32, 32, device=device)
    yq = torch.arange(WAYS, device=device).repeat_interleave(QUERIES)
    return xs, ys, xq, yq


def adapt(net, xs, ys, lr):
    """One inner step on a copy of the net; the graph is kept for second order terms."""
    learner = copy.deepcopy(net)
    loss = F.cross_entropy(learner(xs), ys)
    loss.backward(create_graph=True)  # LEAK
    fast = {name: p - lr * p.grad for name, p in learner.named_parameters()}
    return learner, fast


def main():
    net = FewShotNet().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(60):
        xs, ys, xq, yq = sample_task()
        learner, fast = adapt(net, xs, ys, lr=0.1)
        outer = F.cross_entropy(torch.func.functional_call(learner, fast, (xq,)), yq)
        grads = torch.autograd.grad(outer, list(learner.parameters()))
        optimizer.zero_grad()
        for p, g in zip(net.parameters(), grads):
            p.grad = g.detach()
        optimizer.step()
        if step % 10 == 0:
            print(f"task {step}: query loss {outer.item():.3f}, {torch.cuda.memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
