# kind: keyframes with their feature maps and the edges between them pile up while a room is explored, from a limit on the most redundant keyframe is culled with its edges for each new one; after rmurai0610/MASt3R-SLAM issue 18 and jczarnowski/DeepFactors issue 2
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

LIMIT = 40


@dataclass(eq=False)
class Keyframe:
    number: int
    features: torch.Tensor
    depth: torch.Tensor
    descriptor: torch.Tensor
    pose: torch.Tensor


class Frontend(nn.Module):
    def __init__(self, ch=24):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, ch, 5, 2, 2), nn.ReLU(), nn.Conv2d(ch, ch, 3, 2, 1))
        self.depth = nn.Conv2d(ch, 1, 3, padding=1)

    def forward(self, img):
        f = self.encoder(img)
        return f, F.softplus(self.depth(f)), F.normalize(f.mean((2, 3)), dim=1)


class FactorGraph:
    def __init__(self):
        self.edges = {}

    def add(self, a, b):
        corr = torch.einsum("bchw,bchw->bhw", a.features, b.features)
        self.edges[(a.number, b.number)] = corr / a.features.shape[1] ** 0.5

    def remove(self, number):
        for key in [k for k in self.edges if number in k]:
            del self.edges[key]

    def residual(self):
        if not self.edges:
            return 0.0
        return torch.stack([e.mean() for e in self.edges.values()]).mean().item()


class Slam:
    def __init__(self, every=2):
        self.net = Frontend().cuda().eval()
        self.graph = FactorGraph()
        self.keyframes = []
        self.every = every

    def redundant(self):
        d = torch.cat([k.descriptor for k in self.keyframes[:-3]])
        sim = d @ d.t()
        sim.fill_diagonal_(-1)
        return int(sim.amax(1).argmax())

    def add_keyframe(self, kf):
        if len(self.keyframes) >= LIMIT:
            old = self.keyframes.pop(self.redundant())
            self.graph.remove(old.number)
        for other in self.keyframes[-2:]:
            self.graph.add(kf, other)
        self.keyframes.append(kf)

    @torch.no_grad()
    def track(self, number, img, pose):
        f, depth, desc = self.net(img.cuda())
        if number % self.every == 0:
            self.add_keyframe(Keyframe(number, f, depth, desc, pose))
        reference = self.keyframes[-1]
        return (f - reference.features).abs().mean().item()


def camera(n):
    base = torch.randn(1, 3, 64, 80)
    for i in range(n):
        base = 0.9 * base + 0.4 * torch.randn(1, 3, 64, 80)
        yield i, base, torch.eye(4)


def main():
    torch.manual_seed(0)
    slam = Slam()
    for i, img, pose in camera(190):
        motion = slam.track(i, img, pose)
        if i % 30 == 0:
            print(f"frame {i}: motion {motion:.3f}, {len(slam.keyframes)} keyframes, "
                  f"{len(slam.graph.edges)} edges, residual {slam.graph.residual():.3f}")


if __name__ == "__main__":
    main()
