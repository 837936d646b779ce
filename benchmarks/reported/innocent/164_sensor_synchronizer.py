# kind: frames of two cameras wait for the lidar sweep with the nearest time stamp, the lidar's driver comes up late and then lags behind, a pair takes everything older out of the queues and their length is limited; after robot perception nodes (message_filters ApproximateTime, UniflexAI/tinynav PR 99)
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda")
QUEUE_SIZE = 120
SLOP = 0.06
PERIOD = 0.1


class ApproximateSync:
    def __init__(self, topics, queue_size, slop, callback):
        self.queues = {t: deque(maxlen=queue_size) for t in topics}
        self.slop = slop
        self.callback = callback

    def push(self, topic, stamp, payload):
        self.queues[topic].append((stamp, payload))
        while all(self.queues.values()):
            if not self.try_match():
                break

    def try_match(self):
        pivot = max(q[0][0] for q in self.queues.values())
        chosen = {}
        for topic, queue in self.queues.items():
            stamp, payload = min(queue, key=lambda m: abs(m[0] - pivot))
            if abs(stamp - pivot) > self.slop:
                while queue and queue[0][0] < pivot - self.slop:
                    queue.popleft()
                return bool(queue)
            chosen[topic] = (stamp, payload)
        for topic, (stamp, _) in chosen.items():
            queue = self.queues[topic]
            while queue and queue[0][0] <= stamp:
                queue.popleft()
        self.callback(**{t: p for t, (_, p) in chosen.items()})
        return True

    def backlog(self):
        return {t: len(q) for t, q in self.queues.items()}


class DepthFusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(6, 16, 5, stride=4, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1))
        self.range = nn.Conv2d(1, 32, 3, padding=1)
        self.out = nn.Conv2d(32, 1, 3, padding=1)

    def forward(self, left, right, sweep):
        x = self.image(torch.cat([left, right], dim=1))
        r = F.interpolate(sweep, size=x.shape[-2:], mode="nearest")
        return self.out(F.relu(x + self.range(r))), r


class Node:
    def __init__(self):
        torch.manual_seed(4)
        self.net = DepthFusion().to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-2, momentum=0.9)
        self.exposure = nn.Conv2d(3, 3, 3, padding=1).to(device)
        self.exposure_optimizer = torch.optim.Adam(self.exposure.parameters(), lr=1e-3)
        self.sync = ApproximateSync(["left", "right", "sweep"], QUEUE_SIZE, SLOP, self.fuse)
        self.pairs = 0
        self.loss = float("nan")

    def camera(self, topic, stamp):
        raw = torch.rand(1, 3, 160, 320, device=device)
        frame = raw / raw.mean().clamp_min(1e-3)
        loss = (self.exposure(F.avg_pool2d(frame, 4)).mean() - 1.0).pow(2)
        self.exposure_optimizer.zero_grad()
        loss.backward()
        self.exposure_optimizer.step()
        self.sync.push(topic, stamp, frame)

    def lidar(self, stamp):
        self.sync.push("sweep", stamp, torch.rand(1, 1, 32, 512, device=device))

    def fuse(self, left, right, sweep):
        depth, reference = self.net(left, right, sweep)
        loss = F.smooth_l1_loss(depth, reference)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.pairs += 1
        self.loss = loss.item()


def main():
    node = Node()
    lag = [40 if t < 130 else 14 for t in range(240)]
    sent = 0
    for tick in range(240):
        now = tick * PERIOD
        node.camera("left", now)
        node.camera("right", now + 0.004)
        if tick >= 90:
            while sent <= tick - lag[tick]:
                node.lidar(sent * PERIOD + 0.02)
                sent += 1
        if tick % 20 == 0:
            print(f"t={now:5.1f}s pairs {node.pairs} loss {node.loss:.4f} waiting {node.sync.backlog()}")


if __name__ == "__main__":
    main()
