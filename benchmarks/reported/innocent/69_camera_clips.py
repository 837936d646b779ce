# kind: action recognition on many cameras, each has a rolling clip of 16 frames, cameras come online one by one and there are eight of them; from SlowFast / mmaction2 live demos (long_video_demo, webcam_demo frame queues)
from collections import deque
import random

import torch
from torch import nn


class Clip3d(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.slow = nn.Conv3d(3, 8, (1, 5, 5), (1, 4, 4))
        self.fast = nn.Conv3d(3, 4, (5, 5, 5), (1, 4, 4), padding=(2, 0, 0))
        self.fc = nn.Linear(12, classes)

    def forward(self, clip):
        pool = lambda t: t.relu().mean((2, 3, 4))
        return self.fc(torch.cat([pool(self.slow(clip[:, :, ::4])), pool(self.fast(clip))], 1))


class Camera:
    def __init__(self, name, length=16):
        self.name = name
        self.frames = deque(maxlen=length)
        self.label = None

    @property
    def ready(self):
        return len(self.frames) == self.frames.maxlen

    def clip(self):
        return torch.stack(tuple(self.frames), dim=1)[None]


class Monitor:
    def __init__(self):
        self.model = Clip3d().cuda().eval()
        self.cameras = {}

    @torch.no_grad()
    def on_frame(self, name, frame):
        cam = self.cameras.setdefault(name, Camera(name))
        cam.frames.append(frame.cuda())
        if cam.ready:
            cam.label = self.model(cam.clip()).argmax(1).item()
        return cam.label


random.seed(4)
torch.manual_seed(4)
monitor = Monitor()
names = [f"gate-{c}" for c in "ABCDEFGH"]
for tick in range(420):
    online = names[:1 + min(tick // 18, 7)]
    name = online[tick % len(online)]
    label = monitor.on_frame(name, torch.rand(3, 72, 72))
    if tick % 70 == 0:
        ready = sum(c.ready for c in monitor.cameras.values())
        print(f"tick {tick} {name}: {label}; {len(monitor.cameras)} cameras, {ready} ready")
