# CARD: 16GiB
# KNOBS: CDIST_BATCH=10000 N_TRAIN=400000 N_GEN=50000 K=4 GEN_BATCH=250
# EXPERT: the features of the training set fit (400000 x 2048 floats, 3 GiB); precision looks for the nearest neighbours of 10000 of them at a time among all, torch.cdist gives 10000 x 400000 distances (14.9 GiB) besides a padded copy of the features (3 GiB); fewer rows at a time (cdist in chunks of 1000), a subset of the training set as manifold; the batch of the generator does not matter
# after marcojira/fld issue 8 (https://github.com/marcojira/fld/issues/8), there 10000 x 1344726: "Tried to allocate 50.10 GiB"
import os
from abc import ABC, abstractmethod

import torch
import torch.nn as nn

import knobs

CDIST_BATCH = int(os.environ.get("CDIST_BATCH", 10000))
N_TRAIN = int(os.environ.get("N_TRAIN", 400000))
N_GEN = int(os.environ.get("N_GEN", 50000))
GEN_BATCH = int(os.environ.get("GEN_BATCH", 250))
K = int(os.environ.get("K", 4))
FEATURES = 2048


class Metric(ABC):
    @abstractmethod
    def compute_metric(self, train_feat, test_feat, gen_feat):
        pass


class FID(Metric):
    def stats(self, feat):
        mean = feat.mean(0)
        cov = torch.zeros(FEATURES, FEATURES, device=feat.device)
        for k in range(0, len(feat), 20000):
            centred = feat[k:k + 20000] - mean
            cov += centred.t() @ centred
        return mean, cov / (len(feat) - 1)

    def compute_metric(self, train_feat, test_feat, gen_feat):
        m1, c1 = self.stats(train_feat)
        m2, c2 = self.stats(gen_feat)
        return (m1 - m2).square().sum() + torch.trace(c1) + torch.trace(c2)


class PrecisionRecall(Metric):
    """Improved precision and recall: share of one set inside the manifold of
    the other, a union of balls around its points."""

    def __init__(self, mode, k=K, batch_size=CDIST_BATCH):
        self.mode, self.k, self.batch_size = mode, k, batch_size

    def get_nn_dists(self, feat):
        dists = torch.zeros(len(feat), device=feat.device)
        for start in range(0, len(feat), self.batch_size):
            end = start + self.batch_size
            curr_dists = torch.cdist(feat[start:end], feat)
            dists[start:end] = curr_dists.kthvalue(self.k + 1, dim=1).values
            del curr_dists
        return dists

    def pct_in_manifold(self, evaluated_feat, manifold_feat):
        total = torch.zeros((), device=evaluated_feat.device)
        nn_dists = self.get_nn_dists(manifold_feat)
        for start in range(0, len(evaluated_feat), self.batch_size):
            end = start + self.batch_size
            pairwise = torch.cdist(evaluated_feat[start:end], manifold_feat)
            total += (pairwise < nn_dists).any(1).sum()
            del pairwise
        return total / len(evaluated_feat)

    def compute_metric(self, train_feat, test_feat, gen_feat):
        if self.mode == "Precision":
            return self.pct_in_manifold(gen_feat, train_feat)
        return self.pct_in_manifold(train_feat, gen_feat)


class Generator(nn.Module):
    def __init__(self, ch=64):
        super().__init__()
        self.start = nn.Linear(64, ch * 16)
        self.net = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(ch, ch, 3, padding=1), nn.ReLU(),
                                 nn.Upsample(scale_factor=2), nn.Conv2d(ch, ch, 3, padding=1), nn.ReLU(),
                                 nn.Conv2d(ch, 3, 3, padding=1), nn.Tanh())

    def forward(self, z):
        return self.net(self.start(z).view(len(z), -1, 4, 4))


class FeatureExtractor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 128, 3, 2, 1), nn.ReLU(), nn.Conv2d(128, 256, 3, 2, 1), nn.ReLU(),
                                 nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, FEATURES))

    @torch.no_grad()
    def get_gen_features(self, generator, n):
        out = torch.empty(n, FEATURES, device="cuda")
        for k in range(0, n, GEN_BATCH):
            z = torch.randn(min(GEN_BATCH, n - k), 64, device="cuda")
            out[k:k + GEN_BATCH] = self.net(generator(z))
        return out

    def get_cached_features(self, n):
        """the training set's features of an earlier run"""
        return torch.randn(n, FEATURES, device="cuda")


def main():
    generator, extractor = Generator().cuda().eval(), FeatureExtractor().cuda().eval()
    knobs.apply(generator)
    train_feat = extractor.get_cached_features(N_TRAIN)
    gen_feat = extractor.get_gen_features(generator, N_GEN)
    print("features: MiB", torch.cuda.memory_allocated() // 2 ** 20)
    metrics = {"fid": FID(), "precision": PrecisionRecall("Precision"), "recall": PrecisionRecall("Recall")}
    with torch.no_grad():
        for name, metric in metrics.items():
            print(name, metric.compute_metric(train_feat, None, gen_feat).item())
    print("PEAK", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
