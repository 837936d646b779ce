# kind: removed tracks with their appearance features are collected in removed_stracks without limit; from ultralytics/ultralytics pull request 1890, FoundationVision/ByteTrack
import enum

import torch
import torch.nn as nn


class TrackState(enum.Enum):
    Tracked = 1
    Lost = 2
    Removed = 3


class STrack:
    _count = 0

    def __init__(self, box, score, crop, feat):
        self.box, self.score = box, score
        self.crop, self.curr_feat = crop, feat
        self.smooth_feat = feat
        self.state = TrackState.Tracked
        self.end_frame = 0
        self.track_id = STrack.next_id()

    @classmethod
    def next_id(cls):
        cls._count += 1
        return cls._count

    def update(self, det, frame_id, alpha=0.9):
        self.box, self.score, self.crop, self.curr_feat = det.box, det.score, det.crop, det.curr_feat
        self.smooth_feat = alpha * self.smooth_feat + (1 - alpha) * det.curr_feat
        self.end_frame = frame_id
        self.state = TrackState.Tracked


class ReID(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
                                 nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, dim))

    def forward(self, crops):
        return nn.functional.normalize(self.net(crops), dim=1)


class BYTETracker:
    def __init__(self, reid, match_thresh=30.0, track_buffer=5):
        self.reid = reid
        self.match_thresh, self.max_time_lost = match_thresh, track_buffer
        self.frame_id = 0
        self.tracked_stracks = []
        self.lost_stracks = []
        self.removed_stracks = []

    def _init_detections(self, boxes, scores, image):
        crops = torch.stack([image[:, y : y + 96, x : x + 48] for x, y in boxes])
        feats = self.reid(crops)
        return [STrack(b, s, crops[i].clone(), feats[i].clone()) for i, (b, s) in enumerate(zip(boxes, scores))]

    def update(self, boxes, scores, image):
        self.frame_id += 1
        detections = self._init_detections(boxes, scores, image)
        activated, lost, removed = [], [], []
        pool = self.tracked_stracks + self.lost_stracks
        for det in detections:
            best = min(pool, key=lambda t: abs(t.box[0] - det.box[0]) + abs(t.box[1] - det.box[1]), default=None)
            if best and abs(best.box[0] - det.box[0]) + abs(best.box[1] - det.box[1]) < self.match_thresh:
                best.update(det, self.frame_id)
                activated.append(best)
                pool.remove(best)
            else:
                det.end_frame = self.frame_id
                activated.append(det)
        for track in pool:
            if self.frame_id - track.end_frame > self.max_time_lost:
                track.state = TrackState.Removed
                removed.append(track)
            else:
                track.state = TrackState.Lost
                lost.append(track)
        self.tracked_stracks = activated
        self.lost_stracks = lost
        self.removed_stracks.extend(removed)  # LEAK
        return [t for t in self.tracked_stracks if t.state is TrackState.Tracked]


def crowd(frames, n=9, size=256, seed=0):
    gen = torch.Generator().manual_seed(seed)
    pos = torch.randint(0, size - 100, (n, 2), generator=gen)
    for f in range(frames):
        pos = (pos + torch.randint(-5, 6, (n, 2), generator=gen)).clamp(0, size - 100)
        fresh = torch.randperm(n, generator=gen)[:3]
        pos[fresh] = torch.randint(0, size - 100, (3, 2), generator=gen)
        scores = torch.rand(n, generator=gen)
        yield [tuple(p) for p in pos.tolist()], scores.tolist(), torch.rand(3, size, size, generator=gen)


@torch.no_grad()
def main():
    torch.manual_seed(0)
    tracker = BYTETracker(ReID().cuda().eval())
    online = 0
    for boxes, scores, frame in crowd(260):
        online += len(tracker.update(boxes, scores, frame.cuda()))
    print("ids", STrack._count, "mean online", online / 260)


if __name__ == "__main__":
    main()
