# kind: the list of futures keeps each finished future's result on the GPU; from simonsobs/sotodlib PR 884 and python/cpython issue 98467
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
import torch.nn.functional as F


class DetectorNoiseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(8, 16, 9, padding=4), nn.ReLU(),
            nn.Conv1d(16, 16, 9, padding=4), nn.ReLU(),
            nn.Conv1d(16, 8, 1),
        )

    def forward(self, x):
        return self.net(x)


class Totals:
    def __init__(self):
        self.lock = threading.Lock()
        self.power = 0.0
        self.count = 0

    def add(self, value):
        with self.lock:
            self.power += value
            self.count += 1


def clean(tod, noise, totals):
    residual = tod - noise
    smooth = F.avg_pool1d(residual, 5, stride=1, padding=2)
    totals.add(smooth.pow(2).mean().item())
    return smooth


def observations(n):
    g = torch.Generator().manual_seed(7)
    for _ in range(n):
        yield torch.randn(2, 8, 2048, generator=g)


def main():
    model = DetectorNoiseNet().cuda().eval()
    totals = Totals()
    futures = []
    with ThreadPoolExecutor(max_workers=2) as pool:
        for tod in observations(120):
            tod = tod.cuda()
            with torch.no_grad():
                noise = model(tod)
            futures.append(pool.submit(clean, tod, noise, totals))  # LEAK
            if len(futures) >= 4:
                futures[-4].result()
    for future in futures:
        future.result()
    print(f"mean power {totals.power / totals.count:.4f}")


if __name__ == "__main__":
    main()
