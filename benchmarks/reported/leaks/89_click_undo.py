# kind: undo stack of an interactive annotator takes a snapshot at every click, going to the next object keeps the stack; from OHIF/Viewers PR 6146 (undo history grows without a limit) and interactive segmentation demos such as ritm_interactive_segmentation (controller.states)
import random
from collections import namedtuple

import torch
from torch import nn

Snapshot = namedtuple("Snapshot", "image_id clicks logits features")


class ClickNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Conv2d(3 + 2 + 1, width, 3, padding=1)
        self.block = nn.Conv2d(width, width, 3, padding=1)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, image, maps, previous):
        f = torch.relu(self.stem(torch.cat([image, maps, previous], 1)))
        f = f + torch.relu(self.block(f))
        return self.out(f), f


class Controller:
    def __init__(self, net):
        self.net = net
        self.states = []
        self.masks_done = 0
        self.image = None

    def load(self, image_id, image):
        self.image_id, self.image = image_id, image
        self.reset_object()

    def reset_object(self):
        h, w = self.image.shape[-2:]
        self.clicks = []
        self.maps = torch.zeros(1, 2, h, w, device=self.image.device)
        self.logits = torch.zeros(1, 1, h, w, device=self.image.device)
        self.features = None

    @torch.no_grad()
    def click(self, y, x, positive):
        self.states.append(Snapshot(self.image_id, list(self.clicks), self.logits, self.features))  # LEAK
        self.clicks.append((y, x, positive))
        self.maps[0, 0 if positive else 1, y - 2:y + 3, x - 2:x + 3] = 1
        self.logits, self.features = self.net(self.image, self.maps, self.logits.sigmoid())

    def undo(self):
        if not self.states:
            return
        last = self.states.pop()
        self.clicks, self.logits, self.features = last.clicks, last.logits, last.features

    def finish(self):
        self.masks_done += 1
        self.reset_object()


def annotate(images=12, objects=4, seed=7):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    control = Controller(ClickNet().cuda().eval())
    for i in range(images):
        control.load(i, torch.rand(1, 3, 224, 224, device="cuda"))
        for _ in range(objects):
            for k in range(rng.randint(3, 8)):
                control.click(rng.randint(2, 221), rng.randint(2, 221), k % 3 != 2)
                if rng.random() < 0.15:
                    control.undo()
            control.finish()


annotate()
