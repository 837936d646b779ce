# kind: each worker thread of a service makes its own workspace in thread-local storage on its first request and enlarges it up to the longest allowed text, there are six threads; from questions on thread pools and per-thread GPU buffers
from concurrent.futures import ThreadPoolExecutor
import threading
import time

import torch
import torch.nn as nn

MAX_TOKENS = 512
local = threading.local()


class Tagger(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.emb = nn.Embedding(2000, d)
        self.conv = nn.Conv1d(d, d, 5, padding=2)
        self.out = nn.Linear(d, 9)

    def forward(self, ids, work):
        n = len(ids)
        work[:n] = self.emb(ids)
        h = torch.relu(self.conv(work[:n].T.unsqueeze(0)))
        return self.out(h[0].T).argmax(1)


def workspace(n, d=128):
    w = getattr(local, "work", None)
    if w is None or len(w) < n:
        size = 64
        while size < n:
            size *= 2
        local.work = w = torch.empty(size, 4 * d, device="cuda")[:, :d]
    return w


def handle(model, ids):
    with torch.inference_mode():
        tags = model(ids.cuda(), workspace(len(ids)))
    time.sleep(0.002)
    return tags.cpu()


def main():
    torch.manual_seed(0)
    model = Tagger().cuda().eval()
    g = torch.Generator().manual_seed(1)
    with ThreadPoolExecutor(6) as pool:
        for wave in range(40):
            longest = min(MAX_TOKENS, 32 + 48 * wave)
            jobs = []
            for _ in range(8):
                n = int(torch.randint(longest // 2, longest + 1, (1,), generator=g))
                jobs.append(pool.submit(handle, model, torch.randint(2000, (n,), generator=g)))
            answers = [j.result() for j in jobs]
            if wave % 8 == 0:
                print("wave", wave, "longest", max(map(len, answers)), "threads", threading.active_count() - 1)


if __name__ == "__main__":
    main()
