# kind: innocent, appearance gallery per track is limited by nn_budget and lost tracks are deleted; from nwojke/deep_sort nn_matching
import torch
import torch.nn as nn
import torch.nn.functional as F


class NearestNeighborDistanceMetric:
    def __init__(self, matching_threshold, budget=None):
        self.matching_threshold, self.budget = matching_threshold, budget
        self.samples = {}

    def partial_fit(self, features, targets, active_targets):
        for feature, target in zip(features, targets):
            self.samples.setdefault(target, []).append(feature)
            if self.budget is not None:
                self.samples[target] = self.samples[target][-self.budget:]
        self.samples = {k: self.samples[k] for k in active_targets if k in self.samples}

    def distance(self, features, targets):
        cost = torch.full((len(targets), len(features)), 1.0, device=features.device)
        for i, target in enumerate(targets):
            if target in self.samples:
                cost[i] = (1 - torch.stack(self.samples[target]) @ features.t()).amin(0)
        return cost


class Track:
    def __init__(self, track_id, max_age):
        self.track_id, self.max_age = track_id, max_age
        self.time_since_update = 0
        self.features = []

    @property
    def deleted(self):
        return self.time_since_update > self.max_age


class Tracker:
    def __init__(self, metric, max_age=8):
        self.metric, self.max_age = metric, max_age
        self.tracks, self._next_id = [], 1

    def update(self, features):
        cost = self.metric.distance(features, [t.track_id for t in self.tracks]).cpu()
        for t in self.tracks:
            t.time_since_update += 1
        free = set(range(len(features)))
        for i, track in enumerate(self.tracks):
            cand = [(cost[i, j].item(), j) for j in free]
            if cand and min(cand)[0] < self.metric.matching_threshold:
                j = min(cand)[1]
                track.features.append(features[j].clone())
                track.time_since_update = 0
                free.discard(j)
        for j in sorted(free):
            track = Track(self._next_id, self.max_age)
            track.features.append(features[j].clone())
            self.tracks.append(track)
            self._next_id += 1
        self.tracks = [t for t in self.tracks if not t.deleted]
        feats, targets = [], []
        for track in self.tracks:
            feats += track.features
            targets += [track.track_id] * len(track.features)
            track.features = []
        self.metric.partial_fit(feats, targets, [t.track_id for t in self.tracks])


class ReIDNet(nn.Module):
    def __init__(self, dim=512):
        super().__init__()
        self.conv = nn.Conv2d(3, 32, 5, 2, 2)
        self.fc = nn.Linear(32 * 16, dim)

    def forward(self, crops):
        x = F.adaptive_avg_pool2d(F.relu(self.conv(crops)), 4).flatten(1)
        return F.normalize(self.fc(x - x.mean(1, keepdim=True)), dim=1)


def street(n_frames, people=12, seed=0):
    gen = torch.Generator().manual_seed(seed)
    looks = torch.rand(people, 3, 32, 16, generator=gen)
    for f in range(n_frames):
        if f % 25 == 24:
            who = int(torch.randint(0, people, (1,), generator=gen))
            looks[who] = torch.rand(3, 32, 16, generator=gen)
        yield looks + 0.05 * torch.randn(looks.shape, generator=gen)


@torch.no_grad()
def main():
    torch.manual_seed(0)
    net = ReIDNet().cuda().eval()
    tracker = Tracker(NearestNeighborDistanceMetric(0.08, budget=40))
    for f, crops in enumerate(street(300)):
        tracker.update(net(crops.cuda()))
    print("ids given", tracker._next_id - 1, "active", len(tracker.tracks))


if __name__ == "__main__":
    main()
