# kind: https://github.com/yangsenius/learning-to-learn-by-pytorch/issues/3: debug records of a logger that are buffered until an error keep the tensors they were given
import logging
import logging.handlers

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"
log = logging.getLogger("l2l")


def setup_logging():
    """Details are written only if something goes wrong."""
    target = logging.StreamHandler()
    target.setLevel(logging.ERROR)
    buffered = logging.handlers.MemoryHandler(capacity=100_000, flushLevel=logging.ERROR, target=target)  # ALSO
    log.addHandler(buffered)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    return buffered


class LearnedOptimizer(nn.Module):
    """An LSTM that proposes updates, coordinate by coordinate."""

    def __init__(self, hidden=20):
        super().__init__()
        self.cell = nn.LSTMCell(2, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, grad, state):
        g = torch.stack([grad.abs().clamp(min=1e-8).log() / 10, grad.sign()], -1)
        h, c = self.cell(g, state)
        return 0.01 * self.out(h).squeeze(-1), (h, c)


def quadratic(batch, dim):
    w = torch.randn(batch, dim, dim, device=device)
    y = torch.randn(batch, dim, 1, device=device)
    return lambda theta: ((w @ theta.view(batch, dim, 1) - y) ** 2).sum((1, 2)).mean()


def unroll(learner, f, theta, horizon):
    n = theta.numel()
    state = (torch.zeros(n, 20, device=device), torch.zeros(n, 20, device=device))
    total = 0.0
    for _ in range(horizon):
        loss = f(theta)
        (grad,) = torch.autograd.grad(loss, theta, retain_graph=True)
        update, state = learner(grad.detach().flatten(), state)
        theta = theta + update.view_as(theta)
        total = total + loss
    return total / horizon, theta


def main():
    buffered = setup_logging()
    learner = LearnedOptimizer().to(device)
    meta = torch.optim.Adam(learner.parameters(), lr=1e-3)
    for it in range(70):
        f = quadratic(512, 64)
        theta = torch.randn(512, 64, device=device, requires_grad=True)
        loss, last = unroll(learner, f, theta, horizon=3)
        meta.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        meta.step()
        log.debug("iteration %d: norm %s, final parameters %s", it, float(norm), last.detach())  # LEAK
        if it % 10 == 0:
            print(f"{it}: {loss.item():.3f} {torch.cuda.memory_allocated() / 2**20:.2f} MiB")
    buffered.buffer.clear()  # all went well


if __name__ == "__main__":
    main()
