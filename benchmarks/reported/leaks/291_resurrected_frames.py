# kind: frame pool fed by __del__, handing out only on an exact size which never comes again; in the manner of a mailing-list report on a video analytics SDK
import random

import torch
import torch.nn as nn


class FramePool:
    def __init__(self):
        self.free = {}
        self.hits = self.misses = 0

    def take(self, shape):
        stack = self.free.get(shape)
        if stack:
            self.hits += 1
            return stack.pop()
        self.misses += 1
        return torch.empty(shape, device="cuda")

    def give(self, shape, storage):
        self.free.setdefault(shape, []).append(storage)  # LEAK


class Frame:
    pool = FramePool()

    def __init__(self, pixels, box):
        x0, y0, x1, y1 = box
        crop = pixels[:, y0:y1, x0:x1]
        self.key = (box, tuple(crop.shape))
        self.data = self.pool.take(tuple(crop.shape)).copy_(crop)

    def __del__(self):
        self.pool.give(self.key, self.data)


class PlateReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 24, 3, 2), nn.ReLU(),
                                  nn.AdaptiveAvgPool2d((1, 6)))
        self.chars = nn.Conv1d(24, 36, 1)

    def forward(self, crop):
        return self.chars(self.conv(crop[None]).squeeze(2)).argmax(1)


def random_box(w, h):
    x, y = random.randrange(w // 2), random.randrange(h // 2)
    return x, y, x + random.randrange(40, w // 2), y + random.randrange(30, h // 2)


def main(frames=1300):
    random.seed(0)
    torch.manual_seed(0)
    reader = PlateReader().cuda().eval()
    seen = 0
    with torch.no_grad():
        for _ in range(frames):
            image = torch.rand(3, 160, 240, device="cuda")
            frame = Frame(image, random_box(240, 160))
            seen += reader(frame.data).sum().item()
            del frame
    print(seen, "hits", Frame.pool.hits, "misses", Frame.pool.misses)


main()
