# kind: one Pickler writes record after record to a stream, its memo keeps each object that it has seen since clear_memo() is never called; from python/cpython issue 125756 / PR 125762 (re-used picklers) and suragnair/alpha-zero-general issue 89 (examples saved with a Pickler)
import io
import pickle

import torch
from torch import nn


class RingFile(io.RawIOBase):
    """Stands for the pipe to the archiver, counts what goes through it."""

    def __init__(self):
        self.written = 0

    def writable(self):
        return True

    def write(self, data):
        n = len(data)
        self.written += n
        return n


class Example:
    __slots__ = ("board", "policy", "value")

    def __init__(self, board, policy, value):
        self.board, self.policy, self.value = board, policy, value

    def __reduce__(self):
        return Example, (self.board, self.policy, self.value)


class ExampleArchive:
    def __init__(self, sink):
        self.sink = sink
        self.pickler = pickle.Pickler(sink, protocol=pickle.HIGHEST_PROTOCOL)
        self.count = 0

    def save(self, example):
        self.pickler.dump(example)  # LEAK
        self.count += 1


class PolicyValue(nn.Module):
    def __init__(self, planes=8, size=15):
        super().__init__()
        self.conv = nn.Conv2d(planes, 16, 3, padding=1)
        self.policy = nn.Linear(16 * size * size, size * size)
        self.value = nn.Linear(16 * size * size, 1)

    def forward(self, x):
        h = torch.relu(self.conv(x)).flatten(1)
        return self.policy(h).softmax(-1), torch.tanh(self.value(h))


def self_play(net, archive, moves=16, games=16):
    for game in range(games):
        board = torch.zeros(16, 8, 15, 15, device="cuda")
        for move in range(moves):
            with torch.no_grad():
                policy, value = net(board)
            archive.save(Example(board, policy, value))
            board = board.roll(1, dims=1)
            board[:, 0] = (policy > policy.mean()).float().view(16, 15, 15)


torch.manual_seed(3)
self_play(PolicyValue().cuda().eval(), ExampleArchive(RingFile()))
