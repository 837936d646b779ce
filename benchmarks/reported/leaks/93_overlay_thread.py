# kind: thread that draws overlays ends with an exception that nobody sees, the detector goes on putting frames into its unbounded queue; from DeepLabCut/DeepLabCut PR 3094 (one of two inference threads crashes) and osai-ai/tensor-stream issue 13
import queue
import threading

import torch
from torch import nn


class Heat(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 10, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(10, 17, 3, padding=1),
        )

    def forward(self, x):
        return self.net(x)


class OverlayThread(threading.Thread):
    def __init__(self, inbox):
        super().__init__(daemon=True)
        self.inbox = inbox
        self.drawn = 0
        self.colours = ["red", "green", "blue", "yellow", "cyan", "white"]

    def run(self):
        while True:
            item = self.inbox.get()
            if item is None:
                return
            frame_no, people, heat = item
            palette = [self.colours[p] for p in range(people)]
            heat.amax(dim=(2, 3))
            self.drawn += len(palette)


def quiet(args):
    pass


class PoseService:
    def __init__(self):
        self.net = Heat().cuda().eval()
        self.to_draw = queue.Queue()
        self.overlay = OverlayThread(self.to_draw)
        self.overlay.start()

    @torch.no_grad()
    def on_frame(self, frame_no, frame, people):
        heat = self.net(frame)
        self.to_draw.put((frame_no, people, heat))  # LEAK


def main():
    threading.excepthook = quiet
    torch.manual_seed(0)
    service = PoseService()
    for n in range(180):
        crowd = 9 if n == 20 else 1 + n % 5
        frame = torch.rand(1, 3, 480, 640, device="cuda")
        service.on_frame(n, frame, crowd)


if __name__ == "__main__":
    main()
