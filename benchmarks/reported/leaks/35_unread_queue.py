# kind: histograms wait on the GPU in an unbounded queue for a writer thread that wakes every two minutes; from request-queue and TensorBoard-like writer issues, small tensors
import queue
import threading
import time
import torch
from torch import nn


class HistogramWriter(threading.Thread):
    def __init__(self, flush_secs=120):
        super().__init__(daemon=True)
        self._events = queue.Queue()
        self._stop_now = threading.Event()
        self.flush_secs = flush_secs
        self.written = 0
        self.start()

    def add_histogram(self, tag, values, step):
        self._events.put((tag, step, values.detach().clone()))  # LEAK

    def _drain(self):
        while True:
            try:
                tag, step, values = self._events.get_nowait()
            except queue.Empty:
                return
            torch.histc(values.float().cpu(), bins=32)
            self.written += 1

    def run(self):
        while not self._stop_now.wait(self.flush_secs):
            self._drain()

    def close(self):
        self._stop_now.set()
        self.join()
        self._drain()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(40, 96)
        self.rnn = nn.GRUCell(96, 96)
        self.out = nn.Linear(96, 6)

    def forward(self, seq):
        h = seq.new_zeros(seq.shape[1], 96)
        for x in seq:
            h = self.rnn(torch.relu(self.enc(x)), h)
        return self.out(h)


def behaviour_cloning(steps=330):
    writer = HistogramWriter()
    policy = Policy().cuda()
    opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
    t0 = time.time()
    for step in range(steps):
        seq = torch.randn(5, 32, 40, device="cuda")
        target = torch.randint(0, 6, (32,), device="cuda")
        loss = nn.functional.cross_entropy(policy(seq), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        for name in ("rnn.weight_hh", "enc.weight"):
            writer.add_histogram("grad/" + name, policy.get_parameter(name).grad, step)  # ALSO
        if step % 110 == 0:
            print("step", step, f"{loss.item():.4f}", f"{time.time() - t0:.1f}s")
    writer.close()
    print("histograms written:", writer.written)


behaviour_cloning()
