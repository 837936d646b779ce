# kind: summary of a stream as a coreset by merge and reduce, two summaries of the same level become one of the next like the carry of a binary counter, so there are at most log2(n) of them and a new level appears ever more rarely; from streaming k-means / coreset code (zalanborsos/bilevel_coresets) and questions on whether its buckets leak
import torch
import torch.nn as nn


class Encoder(nn.Sequential):
    def __init__(self, inputs=64, width=128, out=96):
        super().__init__(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, out))


def sensitivity_sample(points, weights, size, generator):
    """Importance sampling by the distance to a rough solution."""
    centre = (points * weights[:, None]).sum(0) / weights.sum()
    d = (points - centre).square().sum(1) * weights
    q = (0.5 * d / d.sum() + 0.5 * weights / weights.sum()).cpu()
    pick = torch.multinomial(q, size, generator=generator).to(points.device)
    return points[pick], weights[pick] / (size * q.to(points.device)[pick])


class MergeReduce:
    def __init__(self, size, seed=0):
        self.size = size
        self.levels = []
        self.generator = torch.Generator().manual_seed(seed)

    def insert(self, points):
        carry = (points, torch.ones(len(points), device=points.device))
        for level, bucket in enumerate(self.levels):
            if bucket is None:
                self.levels[level] = carry
                return
            both = [torch.cat(pair) for pair in zip(bucket, carry)]
            carry = sensitivity_sample(*both, self.size, self.generator)
            self.levels[level] = None
        self.levels.append(carry)

    def summary(self):
        points, weights = zip(*(b for b in self.levels if b is not None))
        return torch.cat(points), torch.cat(weights)


def weighted_kmeans(points, weights, k, rounds=4):
    centres = points[weights.topk(k).indices].clone()
    for _ in range(rounds):
        nearest = torch.cdist(points, centres).argmin(1)
        total = torch.zeros(k, device=points.device).index_add(0, nearest, weights)
        moved = torch.zeros_like(centres).index_add(0, nearest, points * weights[:, None])
        centres = torch.where(total[:, None] > 0, moved / total[:, None].clamp(min=1e-6), centres)
    cost = (torch.cdist(points, centres).min(1).values.square() * weights).sum() / weights.sum()
    return centres, cost.item()


class SensorStream:
    def __init__(self, modes=20, inputs=64, seed=1):
        self.g = torch.Generator().manual_seed(seed)
        self.modes = 2 * torch.randn(modes, inputs, generator=self.g)

    def read(self, n):
        which = torch.randint(0, len(self.modes), (n,), generator=self.g)
        return self.modes[which] + 0.5 * torch.randn(n, self.modes.shape[1], generator=self.g)


@torch.no_grad()
def main(batches=140, size=1024):
    torch.manual_seed(0)
    encoder, stream, tree = Encoder().cuda().eval(), SensorStream(), MergeReduce(size)
    for i in range(batches):
        tree.insert(encoder(stream.read(size).cuda()))
        if i % 20 == 0:
            points, weights = tree.summary()
            _, cost = weighted_kmeans(points, weights, 20)
            print(f"batch {i}: {len(points)} points stand for {weights.sum().item():.0f}, cost {cost:.3f}")


if __name__ == "__main__":
    main()
