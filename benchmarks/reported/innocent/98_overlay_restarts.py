# kind: drawing thread stops twice in the first half, frames wait on the GPU until the supervisor starts another one, and the backlog is worked off each time; from DeepLabCut/DeepLabCut PR 3094 (queues when one of two threads crashes) and osai-ai/tensor-stream issue 13
import queue
import threading
import types

import torch
from torch import nn


class Heatmaps(nn.Module):
    def __init__(self, joints=14):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 5, 2, 2)
        self.out = nn.Conv2d(8, joints, 3, padding=1)

    def forward(self, x):
        return self.out(torch.relu(self.stem(x)))


class Drawer(threading.Thread):
    def __init__(self, inbox, done):
        super().__init__(daemon=True)
        self.inbox, self.done = inbox, done

    def run(self):
        while True:
            frame = self.inbox.get()
            try:
                if frame is None or frame.corrupt:
                    return
                self.done[frame.number] = float(frame.heat.amax())
            finally:
                del frame
                self.inbox.task_done()


class Supervisor:
    def __init__(self):
        self.inbox, self.done = queue.Queue(), {}
        self.restarts = -1
        self.start()

    def start(self):
        self.worker = Drawer(self.inbox, self.done)
        self.worker.start()
        self.restarts += 1

    def check(self):
        if not self.worker.is_alive():
            self.start()

    def catch_up(self):
        while self.worker.is_alive() and self.inbox.unfinished_tasks:
            self.worker.join(0.002)


def main():
    torch.manual_seed(0)
    net = Heatmaps().cuda().eval()
    supervisor = Supervisor()
    for n in range(300):
        with torch.no_grad():
            heat = net(torch.rand(1, 3, 192, 256, device="cuda"))
        supervisor.inbox.put(types.SimpleNamespace(number=n, heat=heat, corrupt=n in (15, 95)))
        if n % 60 == 59:
            supervisor.check()
        supervisor.catch_up()
    supervisor.inbox.put(None)
    supervisor.worker.join()


if __name__ == "__main__":
    main()
