# kind: tracks taken off the screen stay in removed_stracks together with their appearance maps; from ByteTrack / ultralytics issues
from collections import deque
from enum import Enum
import random
import torch
import torch.nn as nn


class State(Enum):
    NEW = 0
    TRACKED = 1
    LOST = 2
    REMOVED = 3


class STrack:
    count = 0

    def __init__(self, box, feat, frame_id):
        STrack.count += 1
        self.track_id = STrack.count
        self.box = box
        self.state = State.NEW
        self.start_frame = self.frame_id = frame_id
        self.features = deque([feat], maxlen=8)
        self.smooth_feat = feat

    def update(self, box, feat, frame_id, alpha=0.9):
        self.box, self.frame_id, self.state = box, frame_id, State.TRACKED
        self.features.append(feat)
        self.smooth_feat = alpha * self.smooth_feat + (1 - alpha) * feat

    def __repr__(self):
        return f"OT_{self.track_id}_({self.start_frame}-{self.frame_id})"


def iou(a, b):
    x1, y1 = max(a[0], b[0]), max(a[1], b[1])
    x2, y2 = min(a[2], b[2]), min(a[3], b[3])
    inter = max(0, x2 - x1) * max(0, y2 - y1)
    area = lambda r: (r[2] - r[0]) * (r[3] - r[1])
    return inter / (area(a) + area(b) - inter + 1e-9)


class Tracker:
    def __init__(self, max_time_lost=5):
        self.tracked_stracks, self.lost_stracks, self.removed_stracks = [], [], []
        self.max_time_lost = max_time_lost

    def update(self, boxes, feats, frame_id):
        pool = self.tracked_stracks + self.lost_stracks
        used, lost, activated = set(), [], []
        for t in pool:
            scores = [(iou(t.box, b), j) for j, b in enumerate(boxes) if j not in used]
            best = max(scores, default=(0, -1))
            if best[0] > 0.3:
                used.add(best[1])
                t.update(boxes[best[1]], feats[best[1]], frame_id)
                activated.append(t)
            else:
                t.state = State.LOST
                lost.append(t)
        for j, b in enumerate(boxes):
            if j not in used:
                activated.append(STrack(b, feats[j], frame_id))
        removed = []
        for t in lost:
            if frame_id - t.frame_id > self.max_time_lost:
                t.state = State.REMOVED
                removed.append(t)
        self.tracked_stracks = activated
        self.lost_stracks = [t for t in lost if t.state is State.LOST]
        self.removed_stracks.extend(removed)  # LEAK
        return self.tracked_stracks


class ReID(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, dim, 3, 2, 1))

    @torch.no_grad()
    def forward(self, crops):
        return [self.net(c[None])[0] for c in crops]


class Street:
    """Cars come from the left with some speed and leave on the right."""

    def __init__(self, seed=1):
        self.rng = random.Random(seed)
        self.cars = []

    def frame(self):
        self.cars = [[x + v, y, v] for x, y, v in self.cars if x + v < 600]
        if self.rng.random() < 0.5:
            self.cars.append([0, self.rng.choice([0, 60, 120, 180]), self.rng.choice([15, 20, 25])])
        return [(x, y, x + 64, y + 40) for x, y, _ in self.cars]


def run(frames=400):
    street, tracker, reid = Street(), Tracker(), ReID().to("cuda").eval()
    seen = 0
    for f in range(frames):
        boxes = street.frame()
        crops = torch.rand(len(boxes), 3, 64, 64).to("cuda")
        online = tracker.update(boxes, reid(crops), f)
        seen = max([seen] + [t.track_id for t in online])
        if f % 100 == 0:
            print(f, online[:3], "cars so far:", seen)


run()
