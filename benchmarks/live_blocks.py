"""Runs out of memory with many live blocks: what does the report take?

Called by test_explained.py, as a process of its own: how the blocks are held (by
``variables`` or by the ``graph`` of autograd), and how many. Prints names and numbers.
"""

from __future__ import annotations

import resource
import sys
import time

import torch

HUGE = 1 << 45  # bytes: more than any card


def hold(how: str, count: int) -> list[torch.Tensor]:
    """Makes blocks of 1 MiB that stay."""
    if how == "variables":
        return [torch.empty(1 << 18, device="cuda") for _ in range(count)]
    x = torch.ones(1 << 18, device="cuda", requires_grad=True)
    for _ in range(count):
        x = torch.exp(x)
    return [x]


def used_kib() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Fails three times; the first has to load code, too."""
    kept = hold(sys.argv[1], int(sys.argv[2]))
    before, allocated = used_kib(), torch.cuda.memory_stats()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        try:
            torch.empty(HUGE, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            lines = str(error).splitlines()
        times.append(time.perf_counter() - start)
    after = torch.cuda.memory_stats()
    name = "allocation.all.allocated"
    print("first_s", times[0])
    print("best_s", min(times))
    print("host_MiB", (used_kib() - before) / 1024)
    print("lines", len(lines))
    print("allocations", after[name] - allocated[name])
    del kept


main()
