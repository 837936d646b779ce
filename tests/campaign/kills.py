"""``python tests/campaign/kills.py``: ranks of which one is killed.

Each case kills a random rank of a random program at a random moment, from its first
turn on. The others must end by an error that names the process, as they do with a real
NCCL, and nothing may be left. ``--seed N`` repeats a case. Ends with 1 if one differs.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent)]

from campaign import ranks  # noqa: E402

JOBS = 4  # they mostly wait
END_S = 60.0
TOLD = 3000  # characters of what ranks said
TURNS_S = 1.0  # in which the moment lies
LOOP = """
turn = 0
while True:
{body}
    if turn == 0:
        print("turn", flush=True)
    turn += 1
"""
PROGRAMS = {
    "reductions": """
x = torch.ones(1 << 20, device=device)
""",
    "messages": """
x, y = torch.ones(1 << 21, device=device), torch.empty(1 << 21, device=device)
""",
    "DDP": """
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(torch.nn.Linear(300, 300).cuda(), device_ids=[rank])
optimizer = torch.optim.Adam(model.parameters())
""",
    "FSDP2": """
from torch.distributed.fsdp import fully_shard
model = torch.nn.Sequential(*(torch.nn.Linear(200, 200) for _ in range(4))).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters())
""",
    "groups": """
halves = [dist.new_group([r, (r + 1) % size]) for r in range(0, size, 2)]
own = halves[rank // 2]
x = torch.ones(1 << 16, device=device)
""",
}
TRAIN = """
    model(torch.randn(32, {width}, device=device)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BODIES = {
    "reductions": """
    dist.all_reduce(x)
    dist.all_gather([torch.empty_like(x) for _ in range(size)], x)
    x.fill_(1.0)
    torch.cuda.synchronize()
""",
    "messages": """
    ops = [dist.P2POp(dist.isend, x, (rank + 1) % size)]
    ops.append(dist.P2POp(dist.irecv, y, (rank - 1) % size))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    torch.cuda.synchronize()
""",
    "DDP": TRAIN.format(width=300),
    "FSDP2": TRAIN.format(width=200),
    "groups": """
    dist.all_reduce(x, group=own)
    dist.broadcast(x, 0)
    torch.cuda.synchronize()
""",
}


@dataclass(frozen=True)
class Case:
    """Which rank of what is killed, and how long after its first turn."""

    seed: int
    size: int
    card: str
    name: str
    rank: int
    seconds: float

    @property
    def program(self) -> str:
        loop = LOOP.format(body=BODIES[self.name].strip("\n"))
        return ranks.BEGIN + PROGRAMS[self.name] + loop


def draw(seed: int) -> Case:
    """The case of a seed."""
    choose = random.Random(f"kill {seed}")
    name = choose.choice([*PROGRAMS])
    size = choose.choice([2, 4] if name == "groups" else [2, 2, 3, 4])
    card, rank = choose.choice(ranks.CARDS), choose.randrange(size)
    return Case(seed, size, card, name, rank, choose.uniform(0, TURNS_S))


def shared_memory() -> set[str]:
    """What has a name in it, but for semaphores of other tests."""
    return {n for n in os.listdir("/dev/shm") if not n.startswith("sem.mp-")}


def run(case: Case) -> str:
    """What is wrong with how the others end; nothing if they do as they should."""
    with ranks.Ranks(case.size, case.card, case.program) as job:
        for _ in job.listen(END_S):
            if all(b"turn\n" in said for said in job.said):
                break
        for _ in job.listen(case.seconds):
            pass
        killed = job.processes[case.rank]
        if any(each.poll() is not None for each in job.processes):
            return f"ended before: {job.text[:TOLD]}"
        killed.send_signal(signal.SIGKILL)
        began = time.monotonic()
        for _ in job.listen(END_S):
            pass
        seconds = time.monotonic() - began
        others = [each for each in job.processes if each is not killed]
        codes = [each.wait(10) if seconds < END_S else each.poll() for each in others]
        if None in codes or 0 in codes:
            return f"ends {codes} after {seconds:.0f} s: {job.text[:TOLD]}"
        if f"the process {killed.pid} of rank {case.rank} has ended" not in job.text:
            return f"does not name {killed.pid}: {job.text[:TOLD]}"
    return ""


def main() -> int:
    before = shared_memory()

    def judge(seeds: Iterable[int]) -> Iterator[tuple[int, str]]:
        cases = [draw(seed) for seed in seeds]
        with ThreadPoolExecutor(JOBS) as pool:
            for case, fault in zip(cases, pool.map(run, cases), strict=True):
                yield case.seed, fault and f"{case}: {fault}"

    return ranks.main(
        "kills", __doc__, judge, lambda: {"left": sorted(shared_memory() - before)}
    )


if __name__ == "__main__":
    sys.exit(main())
