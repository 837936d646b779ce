# kind: encoder outputs are given back one step after they were scheduled, with more and more clips admitted at once until the limit of the batch; after vllm-project/vllm PR 32789 (the repaired manager)
from collections import deque
from dataclasses import dataclass, field

import torch
import torch.nn as nn

DIM = 64


@dataclass
class Clip:
    name: str
    frames: torch.Tensor
    tokens_left: int
    encoded: bool = False
    out: list = field(default_factory=list)


class CacheManager:
    def __init__(self):
        self.allocated, self.to_free = [], []

    def allocate(self, clip):
        self.allocated.append(clip.name)

    def get_freed(self):
        ready, self.to_free = self.to_free, self.allocated
        self.allocated = []
        return ready


class Scheduler:
    def __init__(self, start=2, limit=14):
        self.limit, self.allowed = limit, start
        self.waiting, self.running = deque(), []
        self.cache = CacheManager()

    def schedule(self, step):
        if step % 6 == 0:
            self.allowed = min(self.limit, self.allowed + 1)
        while self.waiting and len(self.running) < self.allowed:
            self.running.append(self.waiting.popleft())
        new = [c for c in self.running if not c.encoded]
        for c in new:
            self.cache.allocate(c)
        return list(self.running), new, self.cache.get_freed()


class Runner:
    def __init__(self):
        self.encoder = nn.Sequential(nn.Conv1d(40, DIM, 3, 2, 1), nn.ReLU(), nn.Conv1d(DIM, DIM, 3, 2, 1)).cuda()
        self.proj_k, self.proj_v = nn.Linear(DIM, DIM).cuda(), nn.Linear(DIM, DIM).cuda()
        self.query = nn.GRUCell(DIM, DIM).cuda()
        self.head = nn.Linear(DIM, 300).cuda()
        self.encoder_cache, self.cross, self.state = {}, {}, {}

    @torch.inference_mode()
    def execute(self, running, new, freed):
        for name in freed:
            self.encoder_cache.pop(name)
        for c in new:
            states = self.encoder(c.frames.cuda()[None]).transpose(1, 2)
            self.encoder_cache[c.name] = states
            self.cross[c.name] = (self.proj_k(states), self.proj_v(states))
            self.state[c.name] = states.mean(1)
            c.encoded = True
        for c in running:
            k, v = self.cross[c.name]
            h = self.state[c.name]
            a = torch.softmax((h[:, None] @ k.transpose(1, 2)) / DIM ** 0.5, -1) @ v
            self.state[c.name] = self.query(a[:, 0], h)
            c.out.append(self.head(self.state[c.name]).argmax(-1).item())
            c.tokens_left -= 1

    def release(self, clip):
        del self.cross[clip.name], self.state[clip.name]


class Service:
    def __init__(self):
        self.scheduler, self.runner, self.done = Scheduler(), Runner(), 0

    def step(self, i, arrivals):
        self.scheduler.waiting.extend(arrivals)
        self.runner.execute(*self.scheduler.schedule(i))
        for c in [c for c in self.scheduler.running if c.tokens_left <= 0]:
            self.scheduler.running.remove(c)
            self.runner.release(c)
            self.done += 1


def main():
    torch.manual_seed(0)
    service, n = Service(), 0
    for i in range(170):
        arrivals = []
        if len(service.scheduler.waiting) < 4:
            for _ in range(3):
                arrivals.append(Clip(f"clip{n}", torch.randn(40, 320), tokens_left=5 + n % 5))
                n += 1
        service.step(i, arrivals)
        if i % 25 == 0:
            print(i, "allowed", service.scheduler.allowed, "running", len(service.scheduler.running),
                  "done", service.done, "encoder outputs", len(service.runner.encoder_cache))


if __name__ == "__main__":
    main()
