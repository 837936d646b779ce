# kind: the reorder buffer of a camera waits for the next sequence number, a packet that was lost for good holds up all frames behind it; after aiortc/aiortc PR 1418
import heapq
import random
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn as nn

DEVICE = "cuda"
CAMERAS = 4
TICKS = 130


@dataclass(order=True)
class Packet:
    sequence: int
    frame: Any = field(compare=False)
    camera: int = field(compare=False, default=0)


class ReorderBuffer:
    """Hands frames on in the order in which the camera sent them."""

    def __init__(self):
        self.heap = []
        self.expected = 0

    def push(self, packet):
        if packet.sequence < self.expected:
            return
        heapq.heappush(self.heap, packet)  # LEAK

    def pop_ready(self):
        while self.heap and self.heap[0].sequence == self.expected:
            self.expected += 1
            yield heapq.heappop(self.heap).frame


class Network:
    """Delivers packets late, out of order, or (rarely) not at all."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.in_flight = []

    def send(self, now, packet):
        if self.rng.random() < 0.025:
            return
        self.in_flight.append((now + self.rng.choice((0, 0, 0, 1, 2)), packet))

    def deliver(self, now):
        arrived = [p for t, p in self.in_flight if t <= now]
        self.in_flight = [(t, p) for t, p in self.in_flight if t > now]
        self.rng.shuffle(arrived)
        return arrived


class MotionNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(6, 12, 5, stride=4, padding=2), nn.ReLU(),
            nn.Conv2d(12, 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2))

    def forward(self, before, now):
        return self.net(torch.cat((before, now)).unsqueeze(0))


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    model = MotionNet().to(DEVICE).eval()
    network = Network(seed=5)
    buffers = [ReorderBuffer() for _ in range(CAMERAS)]
    previous = [None] * CAMERAS
    analysed = [0] * CAMERAS
    alarms = 0

    for now in range(TICKS):
        for camera in range(CAMERAS):
            raw = torch.randint(0, 256, (3, 180, 240), dtype=torch.uint8)
            network.send(now, Packet(now, raw, camera))
        for packet in network.deliver(now):
            packet.frame = packet.frame.to(DEVICE).float().div_(255)
            buffers[packet.camera].push(packet)
        for camera, buffer in enumerate(buffers):
            for frame in buffer.pop_ready():
                if previous[camera] is not None:
                    scores = model(previous[camera], frame)
                    alarms += int(scores[0, 1] > scores[0, 0])
                previous[camera] = frame
                analysed[camera] += 1
        if now % 20 == 0:
            print(f"t={now:3d} analysed {analysed} alarms {alarms}")


main()
