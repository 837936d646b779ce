# kind: a scratch buffer pool puts released buffers into free lists keyed by the exact shape and images hardly ever have the same size twice; after CanReader/FastNN issue 17
from collections import defaultdict
from contextlib import contextmanager

import torch
from torch import nn

torch.manual_seed(13)


class ScratchPool:
    def __init__(self, device, max_per_shape=4):
        self.device = device
        self.max_per_shape = max_per_shape
        self.free = defaultdict(list)
        self.hits = self.misses = 0

    def acquire(self, shape):
        bucket = self.free[shape]
        if bucket:
            self.hits += 1
            return bucket.pop()
        self.misses += 1
        return torch.empty(shape, device=self.device)  # ALSO

    def release(self, buf):
        bucket = self.free[tuple(buf.shape)]
        if len(bucket) < self.max_per_shape:
            bucket.append(buf)  # LEAK

    @contextmanager
    def scratch(self, *shape):
        buf = self.acquire(shape)
        try:
            yield buf
        finally:
            self.release(buf)  # ALSO


class EdgeScorer(nn.Module):
    """Document quality score: Sobel magnitude, blurred, then a small head."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool
        sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
        self.register_buffer("kernel", torch.stack([sobel, sobel.T])[:, None])
        self.head = nn.Linear(16, 1)

    @torch.no_grad()
    def forward(self, page):
        h, w = page.shape
        with self.pool.scratch(1, 1, h + 2, w + 2) as padded:
            padded.zero_()
            padded[0, 0, 1:-1, 1:-1] = page
            grad = nn.functional.conv2d(padded, self.kernel)[0]
            with self.pool.scratch(h, w) as magnitude:
                torch.hypot(grad[0], grad[1], out=magnitude)
                pooled = nn.functional.adaptive_avg_pool2d(magnitude[None, None], 4)
                return self.head(pooled.flatten()).sigmoid().item()


def main():
    pool = ScratchPool("cuda")
    scorer = EdgeScorer(pool).cuda().eval()
    gen = torch.Generator().manual_seed(21)
    scores = []
    for page_no in range(240):
        h = int(torch.randint(380, 900, (1,), generator=gen))
        w = int(torch.randint(280, 640, (1,), generator=gen))
        page = torch.rand(h, w, generator=gen).cuda()
        scores.append(scorer(page))
        if page_no % 60 == 59:
            print(f"{page_no + 1} pages, mean score {sum(scores) / len(scores):.3f}, "
                  f"pool hits {pool.hits} misses {pool.misses}")


if __name__ == "__main__":
    main()
