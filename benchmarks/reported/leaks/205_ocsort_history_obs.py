# kind: every filter of a tracker writes each observation into history_obs, cars on a parking lot are never lost and so neither are their observations; from mikel-brostrom/boxmot issue 1357
from collections import deque

import torch
import torch.nn as nn

EMB = 256


class KalmanFilterNew:
    """Diagonal constant-velocity filter over box and appearance."""

    def __init__(self, z):
        self.x = z.clone()
        self.v = torch.zeros_like(z)
        self.P = torch.ones_like(z)
        self.R, self.Q = 0.4, 0.05
        self.history_obs = []
        self.attr_saved = None
        self.observed = True

    def predict(self):
        self.x = self.x + self.v
        self.P = self.P + self.Q

    def freeze(self):
        self.attr_saved = (self.x.clone(), self.v.clone(), self.P.clone())

    def unfreeze(self, z):
        last = next((o for o in reversed(self.history_obs) if o is not None), self.attr_saved[0])
        gap = 1
        for o in reversed(self.history_obs):
            if o is not None:
                break
            gap += 1
        self.x, self.v, self.P = self.attr_saved
        self.v = (z - last) / gap
        self.attr_saved = None

    def update(self, z):
        if z is None:
            if self.observed:
                self.freeze()
            self.observed = False
            self.history_obs.append(None)
            return
        if not self.observed:
            self.unfreeze(z)
        self.observed = True
        self.history_obs.append(z)  # LEAK
        gain = self.P / (self.P + self.R)
        innovation = z - self.x
        self.x = self.x + gain * innovation
        self.v = self.v + 0.1 * gain * innovation
        self.P = (1 - gain) * self.P


class KalmanBoxTracker:
    def __init__(self, ident, z, max_obs=30):
        self.id = ident
        self.kf = KalmanFilterNew(z)
        self.history = deque([], maxlen=max_obs)
        self.time_since_update = 0

    def predict(self):
        self.kf.predict()
        self.time_since_update += 1
        self.history.append(self.kf.x[:4])
        return self.kf.x

    def update(self, z):
        self.kf.update(z)
        if z is not None:
            self.time_since_update = 0


class OCSort:
    def __init__(self, max_age=15):
        self.trackers, self.max_age, self.count = [], max_age, 0

    def associate(self, dets):
        if not self.trackers:
            return {}, list(range(len(dets)))
        pred = torch.stack([t.kf.x for t in self.trackers])
        cost = torch.cdist(dets, pred).cpu()
        pairs, used = {}, set()
        for d in range(len(dets)):
            for t in cost[d].argsort().tolist():
                if t not in used:
                    pairs[t] = d
                    used.add(t)
                    break
        return pairs, [d for d in range(len(dets)) if d not in pairs.values()]

    def update(self, dets):
        for t in self.trackers:
            t.predict()
        pairs, new = self.associate(dets)
        for k, t in enumerate(self.trackers):
            t.update(dets[pairs[k]].clone() if k in pairs else None)
        for d in new:
            self.trackers.append(KalmanBoxTracker(self.count, dets[d].clone()))
            self.count += 1
        self.trackers = [t for t in self.trackers if t.time_since_update <= self.max_age]
        return [t.id for t in self.trackers]


class ParkingLot:
    def __init__(self, cars=24):
        self.boxes = torch.rand(cars, 4)
        self.reid = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, EMB)).cuda().eval()
        self.crops = torch.rand(cars, 3, 16, 16)

    @torch.no_grad()
    def frame(self):
        seen = torch.rand(len(self.boxes)) > 0.05
        crops = (self.crops + 0.02 * torch.randn_like(self.crops))[seen].cuda()
        boxes = (self.boxes + 0.002 * torch.randn_like(self.boxes))[seen].cuda()
        return torch.cat([boxes, self.reid(crops)], dim=1)


def main():
    torch.manual_seed(1)
    lot, tracker = ParkingLot(), OCSort()
    for i in range(130):
        ids = tracker.update(lot.frame())
        if i % 26 == 0:
            print(f"frame {i}: {len(ids)} cars, highest id {max(ids)}")


if __name__ == "__main__":
    main()
