"""Measures rows of one kind on the simulated card of this process, as their script did.

    OOMPH_SIMULATE=h100 python benchmarks/published/measure.py < rows.json

Rows come as JSON on standard input, those of a kernel together. For each, in their
order, standard output gets a line: MiB of memory, or ms of the virtual clock.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from forks import Request, serve
from kernels import BY_NAME, Case

MEMORY_RUNS = 10  # as published; the median counts
# What a script takes both passes for, whatever mode it writes down.
WHOLE = {
    ("group_norm", "memory", "forward"),
    ("group_norm", "memory", "backward"),
    ("megatron_rms_norm", "speed", "backward"),
    ("megatron_swiglu", "speed", "backward"),
}
TIMED_RUNS = 5  # the virtual clock varies only until the host has run ahead
CACHE_BYTES = 256 * 2**20  # what triton.testing.do_bench zeroes before each run


def case_of(row: Request) -> Case:
    config = json.loads(row["config"])
    config.update(mode=row["mode"], metric=row["metric"])
    return BY_NAME[row["kernel"]](int(row["x"]), config)


def call_of(case: Case, row: Request) -> Callable[[], object]:
    """Forward, backward of one forward, or both."""
    if (row["kernel"], row["metric"], row["mode"]) in WHOLE:
        return case.full
    if row["mode"] == "forward":
        return case.forward
    if row["mode"] == "backward":
        outputs = case.forward()
        return lambda: case.backward(outputs)
    return case.full


def peak_mib(call: Callable[[], object]) -> float:
    peaks = []
    for _ in range(MEMORY_RUNS):
        torch.cuda.reset_peak_memory_stats()
        call()
        peaks.append(torch.cuda.max_memory_allocated() / 2**20)
    return statistics.median(peaks)


def elapsed_ms(case: Case, call: Callable[[], object]) -> float:
    """As `triton.testing.do_bench` takes times: runs follow on each other."""
    cache = torch.empty(CACHE_BYTES, dtype=torch.int8, device="cuda")
    runs = []
    for _ in range(TIMED_RUNS):
        for leaf in case.leaves:
            leaf.grad = None
        cache.zero_()
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        ends[0].record()
        call()
        ends[1].record()
        runs.append(ends)
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in runs)


def measure(row: Request) -> float:
    if row["metric"] == "memory":
        # Each script had timed the module before: workspaces of cuBLAS stay.
        case_of({**row, "mode": "full"}).full()
        gc.collect()
    case = case_of(row)
    call = call_of(case, row)
    return peak_mib(call) if row["metric"] == "memory" else elapsed_ms(case, call)


def answers(work: Callable[[Request], Any], rows: Sequence[Request]) -> Iterator[Any]:
    """What some work gives for rows, one after the other, each on an empty card."""
    for row in rows:
        yield work(row)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(serve(lambda row: row["kernel"], partial(answers, measure)))
