# kind: the queues of tracks that have ended are never dropped from _queues, so their instances' crops stay on the GPU; after talmolab/dreem PR 141
from collections import deque

import torch
import torch.nn as nn


class Instance:
    def __init__(self, bbox, crop):
        self.bbox = bbox
        self.crop = crop
        self.features = None
        self.pred_track_id = -1


class Frame:
    def __init__(self, frame_id, instances):
        self.frame_id = frame_id
        self.instances = instances

    def to(self, device):
        for inst in self.instances:
            inst.crop = inst.crop.to(device)  # LEAK
        return self


class TrackQueue:
    """Last `window_size` instances of each track."""

    def __init__(self, window_size, max_gap):
        self.window_size = window_size
        self.max_gap = max_gap
        self._queues = {}
        self._curr_gap = {}
        self._curr_track = -1

    def collate_tracks(self):
        return {k: q for k, q in self._queues.items() if self._curr_gap[k] <= self.max_gap}

    def new_track(self):
        self._curr_track += 1
        return self._curr_track

    def add_frame(self, frame):
        seen = set()
        for inst in frame.instances:
            k = inst.pred_track_id
            if k not in self._queues:
                self._queues[k] = deque([inst], maxlen=self.window_size)  # ALSO
            else:
                self._queues[k].append(inst)  # ALSO
            self._curr_gap[k] = 0
            seen.add(k)
        for k in self._queues:
            if k not in seen:
                self._curr_gap[k] += 1


class VisualEncoder(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1),
                                 nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, d))

    def forward(self, x):
        return self.net(x)


class Tracker:
    def __init__(self, encoder, window_size=8, max_gap=3, overlap_thresh=0.1):
        self.encoder = encoder
        self.track_queue = TrackQueue(window_size, max_gap)
        self.overlap_thresh = overlap_thresh

    @torch.inference_mode()
    def track(self, frame):
        feats = self.encoder(torch.stack([i.crop for i in frame.instances]))
        for inst, f in zip(frame.instances, feats):
            inst.features = f
        tracks = self.track_queue.collate_tracks()
        for inst in frame.instances:
            best, best_iou = None, self.overlap_thresh
            for k, q in tracks.items():
                iou = self.iou(inst.bbox, q[-1].bbox)
                if iou > best_iou:
                    best, best_iou = k, iou
            inst.pred_track_id = self.track_queue.new_track() if best is None else best
        self.track_queue.add_frame(frame)
        return [i.pred_track_id for i in frame.instances]

    @staticmethod
    def iou(a, b):
        w = min(a[0], b[0]) + 20 - max(a[0], b[0])
        h = min(a[1], b[1]) + 20 - max(a[1], b[1])
        inter = max(w, 0) * max(h, 0)
        return inter / (800 - inter)


def video(n_frames, n_flies=4, size=160):
    """flies walk through the field of view; each leaves after a while and another enters"""
    for t in range(n_frames):
        insts = []
        for k in range(n_flies):
            age = (t + 2 * k) % 8
            entry = 25 * k + 400 * ((t + 2 * k) // 8 % 2)
            insts.append(Instance((entry, 3 * age), torch.rand(3, size, size)))
        yield Frame(t, insts)


if __name__ == "__main__":
    torch.manual_seed(0)
    tracker = Tracker(VisualEncoder().cuda().eval())
    for frame in video(120):
        ids = tracker.track(frame.to("cuda"))
        if frame.frame_id % 30 == 0:
            print(frame.frame_id, ids)
