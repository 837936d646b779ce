# kind: detector and recogniser run in two threads with a dict of frames in flight, entries are popped by the second stage and a semaphore limits them; from multi-threaded video analytics (DeepStream-like Python code, ultralytics threaded inference questions)
import queue
import threading

import torch
import torch.nn as nn

LIMIT = 10
slots = threading.Semaphore(LIMIT)
in_flight, guard = {}, threading.Lock()
todo = queue.Queue()
results = {}


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 5, 2, 2), nn.ReLU(), nn.Conv2d(8, 1, 5, 2, 2))

    def forward(self, x):
        heat = self.net(x)[:, 0]
        top = heat.flatten(1).topk(3).indices
        return torch.stack([top // heat.shape[-1], top % heat.shape[-1]], -1) * 4


class Recogniser(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, classes))

    def forward(self, crops):
        return self.net(crops).argmax(1)


def detect(frames, det):
    with torch.inference_mode():
        for i, frame in enumerate(frames):
            slots.acquire()
            frame = frame.cuda()
            boxes = det(frame[None])[0]
            with guard:
                in_flight[i] = (frame, boxes)
            todo.put(i)
    todo.put(None)


def recognise(rec, side=32):
    with torch.inference_mode():
        while (i := todo.get()) is not None:
            with guard:
                frame, boxes = in_flight.pop(i)
            crops = []
            for y, x in boxes.tolist():
                y, x = min(y, frame.shape[1] - side), min(x, frame.shape[2] - side)
                crops.append(frame[:, y:y + side, x:x + side])
            results[i] = rec(torch.stack(crops)).tolist()
            del frame, boxes, crops
            slots.release()


def video(n, side=128):
    for _ in range(n):
        yield torch.rand(3, side, side)


torch.manual_seed(0)
det, rec = Detector().cuda().eval(), Recogniser().cuda().eval()
workers = [threading.Thread(target=detect, args=(video(150), det)), threading.Thread(target=recognise, args=(rec,))]
for w in workers:
    w.start()
for w in workers:
    w.join()
print(len(results), "frames, first", results[0], "last", results[149], "left", len(in_flight))
