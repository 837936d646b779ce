# kind: innocent, checkpoints are copied on the GPU and written by a thread, a semaphore lets at most 4 copies wait; in the manner of async checkpointing posts (torch.distributed.checkpoint.async_save users)
import io
import queue
import threading
import time

import torch
import torch.nn as nn


class AsyncCheckpointer:
    def __init__(self, max_pending=4, write_seconds=0.03):
        self.slots = threading.Semaphore(max_pending)
        self.jobs = queue.Queue()
        self.write_seconds = write_seconds
        self.written = 0
        self.thread = threading.Thread(target=self._write_loop, daemon=True)
        self.thread.start()

    def save(self, step, model, optimizer):
        self.slots.acquire()
        state = {
            "step": step,
            "model": {k: v.detach().clone() for k, v in model.state_dict().items()},
            "momentum": [s["momentum_buffer"].clone() for s in optimizer.state.values()
                         if s.get("momentum_buffer") is not None],
        }
        self.jobs.put(state)

    def _write_loop(self):
        while True:
            state = self.jobs.get()
            if state is None:
                return
            cpu = {k: v.cpu() for k, v in state["model"].items()}
            moments = [m.cpu() for m in state["momentum"]]
            buffer = io.BytesIO()
            torch.save((state["step"], cpu, moments), buffer)
            time.sleep(self.write_seconds)  # slow network drive
            self.written += 1
            del state
            self.slots.release()

    def close(self):
        self.jobs.put(None)
        self.thread.join()


class Net(nn.Module):
    def __init__(self, d=200):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, 4)

    def forward(self, x):
        return self.l3(torch.relu(self.l2(torch.relu(self.l1(x)))))


def main(steps=160, save_every=2):
    torch.manual_seed(0)
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    checkpointer = AsyncCheckpointer()
    t0 = time.time()
    try:
        for step in range(1, steps + 1):
            x = torch.randn(32, 200, device="cuda")
            loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % save_every == 0:
                checkpointer.save(step, model, optimizer)
            if step % 40 == 0:
                print(f"step {step} loss {loss.item():.4f} written {checkpointer.written} "
                      f"({time.time() - t0:.1f} s)")
    finally:
        checkpointer.close()
    print(f"{checkpointer.written} checkpoints written")


if __name__ == "__main__":
    main()
