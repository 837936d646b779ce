# kind: spiking neurons enter themselves into a list of their class so that states can be detached for all at once, the networks of past trials of a search stay in it; after jeshraghian/snntorch issue 328
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"
T = 6
BATCH = 24


class FastSigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / (1 + 25 * x.abs()) ** 2


class LIF(nn.Module):
    """Leaky integrate-and-fire neuron with its membrane potential inside."""

    instances = []

    def __init__(self, beta, threshold=1.0):
        super().__init__()
        LIF.instances.append(self)  # LEAK
        self.register_buffer("beta", torch.tensor(beta))
        self.threshold = threshold
        self.mem = None

    def forward(self, current):
        if self.mem is None or self.mem.shape != current.shape:
            self.mem = torch.zeros_like(current)
        self.mem = self.beta * self.mem + current
        spike = FastSigmoid.apply(self.mem - self.threshold)
        self.mem = self.mem - spike.detach() * self.threshold
        return spike

    @classmethod
    def detach_hidden(cls):
        for neuron in cls.instances:
            if neuron.mem is not None:
                neuron.mem = neuron.mem.detach()


class SpikingNet(nn.Module):
    def __init__(self, beta, threshold, width):
        super().__init__()
        self.conv = nn.Conv2d(2, width, 5, padding=2)
        self.lif1 = LIF(beta, threshold)
        self.fc = nn.Linear(width * 8 * 8, 10)
        self.lif2 = LIF(beta, threshold)

    def forward(self, frames):
        votes = 0
        for frame in frames:
            s = self.lif1(self.conv(frame))
            votes = votes + self.lif2(self.fc(F.max_pool2d(s, 2).flatten(1)))
        return votes


def events(generator):
    """Event-camera frames: (time, batch, polarity, height, width)."""
    y = torch.randint(0, 10, (BATCH,), generator=generator)
    rate = 0.05 + 0.02 * y.float().view(1, -1, 1, 1, 1)
    frames = (torch.rand(T, BATCH, 2, 16, 16, generator=generator) < rate).float()
    return frames.to(DEVICE), y.to(DEVICE)


def trial(beta, threshold, width, lr, steps=3):
    generator = torch.Generator().manual_seed(11)
    net = SpikingNet(beta, threshold, width).to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    loss = None
    for _ in range(steps):
        frames, y = events(generator)
        loss = F.cross_entropy(net(frames), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        LIF.detach_hidden()
    return loss.item()


grid = itertools.product((0.5, 0.7, 0.8, 0.9, 0.95), (0.5, 0.75, 1.0, 1.25), (16, 24), (1e-3, 3e-3))
best = (float("inf"), None)
for number, setting in enumerate(grid, 1):
    score = trial(*setting)
    if score < best[0]:
        best = (score, setting)
    if number % 10 == 0:
        print(f"trial {number:3d}: best loss {best[0]:.4f} with {best[1]}")
print("search finished:", best)
