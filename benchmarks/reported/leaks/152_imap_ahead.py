# kind: ThreadPool.imap decodes ahead of the training loop without any limit, decoded clips wait on the GPU in its result list and the backlog grows; after python/cpython issue 101586
import itertools
import time
from multiprocessing.pool import ThreadPool

import torch
from torch import nn

torch.manual_seed(16)


class ClipDecoder:
    """Stands for reading and decoding a short clip; reading takes a few milliseconds."""

    def __init__(self, frames=8, size=96):
        self.frames = frames
        self.size = size

    def __call__(self, index):
        gen = torch.Generator().manual_seed(index)
        time.sleep(0.04)
        coarse = torch.rand(1, 3, self.frames, 12, 12, generator=gen)
        clip = coarse.cuda().repeat(1, 1, 1, self.size // 12, self.size // 12)  # ALSO
        label = int(torch.randint(0, 5, (1,), generator=gen))
        return clip, label


class ClipNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.AvgPool3d((2, 8, 8)), nn.Flatten(), nn.Linear(3 * 4 * 12 * 12, 64), nn.ReLU())
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        return self.head(self.features(x))


def main():
    net = ClipNet().cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    pool = ThreadPool(2)
    indices = itertools.count()
    clips = pool.imap(ClipDecoder(), indices)  # LEAK
    running = 0.0
    for step in range(120):
        clip, label = next(clips)
        logits = net(clip)
        loss = nn.functional.cross_entropy(logits, torch.tensor([label], device="cuda"))
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.03)  # data-independent bookkeeping of the experiment
        running += loss.item()
        if step % 30 == 29:
            print(f"step {step + 1} loss {running / 30:.3f}")
            running = 0.0
    pool.terminate()


if __name__ == "__main__":
    main()
