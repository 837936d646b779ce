# kind: thread objects are kept in a list for a join at shutdown, each still has the result of its run as an attribute; in the manner of Stack Overflow "how to get the return value from a thread" code in Flask/OpenCV inference servers
import threading
import time

import torch
import torch.nn as nn


class ThreadWithResult(threading.Thread):
    def __init__(self, fn, *args):
        super().__init__(daemon=True)
        self.fn = fn
        self.args = args
        self.result = None
        self.error = None

    def run(self):
        try:
            self.result = self.fn(*self.args)
        except Exception as e:  # noqa: BLE001
            self.error = e

    def wait(self, timeout=None):
        self.join(timeout)
        if self.error is not None:
            raise self.error
        return self.result


class DepthModel(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, ch, 3, padding=1), nn.ReLU(),
            nn.Conv2d(ch, ch, 3, padding=2, dilation=2), nn.ReLU(),
            nn.Conv2d(ch, 1, 1), nn.Softplus())

    def forward(self, x):
        return self.net(x)


class CameraServer:
    def __init__(self, n_cameras=3, device="cuda"):
        self.device = device
        self.model = DepthModel().to(device).eval()
        self.lock = threading.Lock()
        self.n_cameras = n_cameras
        self.workers = []

    def infer(self, camera, frame_no):
        frame = torch.rand(1, 3, 96, 128, device=self.device)
        with torch.no_grad(), self.lock:
            return self.model(frame)[0, 0]

    def submit(self, camera, frame_no):
        worker = ThreadWithResult(self.infer, camera, frame_no)
        self.workers.append(worker)  # LEAK
        worker.start()
        return worker

    def tick(self, frame_no):
        jobs = [self.submit(c, frame_no) for c in range(self.n_cameras)]
        return [job.wait(10).mean().item() for job in jobs]

    def shutdown(self):
        for worker in self.workers:
            worker.join()
        print(f"{len(self.workers)} workers joined")


def main(n_frames=80):
    torch.manual_seed(0)
    server = CameraServer()
    start = time.time()
    for frame_no in range(n_frames):
        means = server.tick(frame_no)
        if frame_no % 20 == 0:
            print(f"frame {frame_no}: mean depths {['%.2f' % m for m in means]}")
    print(f"{n_frames / (time.time() - start):.1f} frames/s")
    server.shutdown()


if __name__ == "__main__":
    main()
