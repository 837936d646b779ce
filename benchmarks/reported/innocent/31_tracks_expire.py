# kind: gallery of appearance features per track, a track is forgotten some frames after it was last seen; from multi-object tracking memory issues (the repaired form)
from collections import deque
import torch
import torch.nn as nn


class Gallery:
    def __init__(self, per_track=32, max_age=16):
        self.per_track, self.max_age = per_track, max_age
        self.feats, self.seen = {}, {}

    def add(self, tid, feat, now):
        self.feats.setdefault(tid, deque(maxlen=self.per_track)).append(feat)
        self.seen[tid] = now

    def prune(self, now):
        gone = [t for t, s in self.seen.items() if now - s > self.max_age]
        for t in gone:
            del self.feats[t], self.seen[t]
        return gone

    def prototypes(self):
        return {t: torch.stack(tuple(q)).mean(0) for t, q in self.feats.items()}

    def __len__(self):
        return sum(map(len, self.feats.values()))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1), nn.Hardswish(), nn.Conv2d(24, 48, 3, 2, 1))

    @torch.inference_mode()
    def forward(self, crops):
        return self.body(crops)


def visible(frame, every=6, stay=84):
    """One person comes in every 6 frames and stays for 84."""
    newest = frame // every
    return [p for p in range(max(0, newest - stay // every), newest + 1) if p * every <= frame < p * every + stay]


def main(frames=300):
    net, gallery = Backbone().cuda().eval(), Gallery()
    total_gone = 0
    for f in range(frames):
        ids = visible(f)
        crops = torch.rand(len(ids), 3, 64, 32).cuda()
        maps = net(crops)
        for tid, m in zip(ids, maps):
            gallery.add(tid, m.clone(), f)
        total_gone += len(gallery.prune(f))
        protos = gallery.prototypes()
        if f % 65 == 0:
            print(f"frame {f}: {len(protos)} tracks, {len(gallery)} features, {total_gone} forgotten")


if __name__ == "__main__":
    main()
