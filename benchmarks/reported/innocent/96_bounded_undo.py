# kind: proofreading of a label volume with undo and redo, thirty snapshots are held and a new stroke drops the redo branch, the stack is kept from volume to volume; from kreshuklab/panseg PR 323 (snapshots during proofreading, a bounded number) and OHIF/Viewers PR 6146 (maxUndoRedoCacheSize)
import random
from collections import deque

import torch
from torch import nn


class Refiner(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv3d(3, 4, 3, padding=1)
        self.b = nn.Conv3d(4, 1, 1)

    def forward(self, volume, labels, stroke):
        x = torch.stack([volume, labels, stroke])[None]
        return self.b(torch.relu(self.a(x)))[0, 0].sigmoid()


class History:
    def __init__(self, limit):
        self.past, self.future = deque(maxlen=limit), []

    def record(self, state):
        self.past.append(state)
        self.future.clear()

    def undo(self, present):
        if not self.past:
            return present
        self.future.append(present)
        return self.past.pop()

    def redo(self, present):
        if not self.future:
            return present
        self.past.append(present)
        return self.future.pop()


class Session:
    shape = (12, 80, 80)

    def __init__(self, limit=30):
        self.net = Refiner().cuda().eval()
        self.history = History(limit)
        self.labels = torch.zeros(self.shape, device="cuda")

    def open(self, volume):
        self.volume = volume
        self.labels = torch.zeros_like(volume)

    @torch.no_grad()
    def stroke(self, z, y, x):
        mark = torch.zeros_like(self.labels)
        mark[z, y:y + 6, x:x + 6] = 1
        self.history.record(self.labels)
        self.labels = self.net(self.volume, self.labels, mark)


def proofread(strokes=260):
    rng = random.Random(2)
    torch.manual_seed(2)
    session = Session()
    for s in range(strokes):
        if s % 65 == 0:
            session.open(torch.rand(Session.shape, device="cuda"))
        session.stroke(rng.randrange(12), rng.randrange(74), rng.randrange(74))
        roll = rng.random()
        if roll < 0.08:
            session.labels = session.history.undo(session.labels)
        elif roll < 0.1:
            session.labels = session.history.redo(session.labels)


proofread()
