# kind: the cache manager reports an encoder output as freed in the very step in which it was scheduled, the runner frees before it computes, so the free misses and the output stays; from vllm-project/vllm PR 32789 (Whisper, issue 31577)
import hashlib
from collections import deque
from dataclasses import dataclass

import torch
import torch.nn as nn

DIM = 96


@dataclass
class Request:
    req_id: str
    audio: torch.Tensor
    max_tokens: int
    mm_hash: str = ""
    produced: int = 0
    encoded: bool = False

    def __post_init__(self):
        self.mm_hash = hashlib.md5(self.req_id.encode()).hexdigest()[:12]


class EncoderDecoderCacheManager:
    """Encoder outputs of encoder-decoder models go into the cross-attention
    cache at once, so that entries can be given back right away."""

    def __init__(self):
        self.allocated = []

    def allocate(self, request):
        self.allocated.append(request.mm_hash)

    def get_freed_mm_hashes(self):
        freed = self.allocated
        self.allocated = []
        return freed


@dataclass
class SchedulerOutput:
    running: list
    to_encode: list
    free_encoder_mm_hashes: list


class Scheduler:
    def __init__(self, max_num_seqs=4):
        self.waiting, self.running = deque(), []
        self.max_num_seqs = max_num_seqs
        self.encoder_cache_manager = EncoderDecoderCacheManager()

    def add_request(self, request):
        self.waiting.append(request)

    def schedule(self):
        while self.waiting and len(self.running) < self.max_num_seqs:
            self.running.append(self.waiting.popleft())
        to_encode = [r for r in self.running if not r.encoded]
        for r in to_encode:
            self.encoder_cache_manager.allocate(r)
        return SchedulerOutput(list(self.running), to_encode, self.encoder_cache_manager.get_freed_mm_hashes())

    def update(self):
        done = [r for r in self.running if r.produced >= r.max_tokens]
        self.running = [r for r in self.running if r.produced < r.max_tokens]
        return done


class ModelRunner:
    def __init__(self):
        self.encoder = nn.Sequential(nn.Conv1d(40, DIM, 3, 2, 1), nn.GELU(), nn.Conv1d(DIM, DIM, 3, padding=1)).cuda()
        self.attn = nn.MultiheadAttention(DIM, 4, batch_first=True).cuda()
        self.head = nn.Linear(DIM, 500).cuda()
        self.encoder_cache = {}
        self.cross_kv = {}

    def _update_states(self, out):
        for mm_hash in out.free_encoder_mm_hashes:
            self.encoder_cache.pop(mm_hash, None)

    def _execute_mm_encoder(self, out):
        for r in out.to_encode:
            states = self.encoder(r.audio.cuda()[None]).transpose(1, 2)
            self.encoder_cache[r.mm_hash] = states  # LEAK
            self.cross_kv[r.req_id] = states.mean(0, keepdim=True)
            r.encoded = True

    @torch.inference_mode()
    def execute_model(self, out):
        self._update_states(out)
        self._execute_mm_encoder(out)
        for r in out.running:
            memory = self.cross_kv[r.req_id]
            q = memory[:, r.produced:r.produced + 1]
            y, _ = self.attn(q, memory, memory, need_weights=False)
            self.head(y).argmax(-1)
            r.produced += 1

    def finish(self, requests):
        for r in requests:
            del self.cross_kv[r.req_id]


def clients(n):
    for i in range(n):
        yield Request(f"transcribe-{i}", torch.randn(40, 200 + 20 * (i % 5)), max_tokens=3 + i % 3)


def main():
    torch.manual_seed(0)
    scheduler, runner = Scheduler(), ModelRunner()
    source, finished = clients(120), 0
    for step in range(140):
        r = next(source, None)
        if r is not None:
            scheduler.add_request(r)
        if not scheduler.waiting and not scheduler.running:
            break
        runner.execute_model(scheduler.schedule())
        done = scheduler.update()
        runner.finish(done)
        finished += len(done)
        if step % 20 == 0:
            print(step, "running", len(scheduler.running), "waiting", len(scheduler.waiting), "finished", finished)


if __name__ == "__main__":
    main()
