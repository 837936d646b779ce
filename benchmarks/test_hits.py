"""What does a cached block cost, beside PyTorch's own allocator?"""

from __future__ import annotations

import subprocess

import pytest
from support import (
    alternate,
    batches,
    build_with_core,
    build_with_torch,
    numbers,
    on_simulated_card,
    run_snippet,
)

RAW = """
import torch
torch.cuda.init()
allocate = torch._C._cuda_cudaCachingAllocator_raw_alloc
delete = torch._C._cuda_cudaCachingAllocator_raw_delete
"""
EMPTY = """
import torch
device = torch.device("cuda", 0)
empty = torch.empty
"""


def test_a_raw_pair_costs_little_beside_pytorchs(figure):
    found = batches(RAW, "delete(allocate(1024, 0))", 20_000)
    figure(
        name="raw_alloc + raw_delete of a cached block / the faster native",
        value=found.ratio(),
        limit=0.6,
        unit="x",
        kind="paired",
        how=str(found),
    )


def test_torch_empty_costs_less_than_with_pytorchs(figure):
    found = batches(EMPTY, "empty(256, device=device)", 10_000)
    figure(
        name="torch.empty of a cached block / the faster native",
        value=found.ratio(),
        limit=0.85,
        unit="x",
        kind="paired",
        how=str(found),
    )


@pytest.fixture(scope="module")
def core(tmp_path_factory) -> dict[str, float]:
    program = build_with_core("pair", tmp_path_factory.mktemp("pair"))
    runs = [
        numbers(subprocess.check_output([program], text=True, env=on_simulated_card()))
        for _ in range(3)
    ]
    return {name: min(run[name] for run in runs) for name in runs[0]}


def test_a_pair_of_the_core_alone_takes_no_100_ns(figure, core):
    figure(
        name="C pair of one size, last in first out",
        value=core["pair_1KiB"],
        limit=100,
        unit="ns",
        kind="timed",
        how="best of 21 rounds of 1,000,000; "
        f"1 MiB {core['pair_1MiB']:.0f}, 20 MiB {core['pair_20MiB']:.0f} ns",
    )


def test_a_million_live_blocks_do_not_slow_it_down(figure, core):
    figure(
        name="the same with 1,000,000 live blocks / without",
        value=core["pair_1KiB_among_million"] / core["pair_1KiB"],
        limit=1.3,
        unit="x",
        kind="paired",
        how=f"{core['pair_1KiB_among_million']:.0f} ns",
    )


def test_a_random_victim_among_a_million_is_found_quickly(figure, core):
    figure(
        name="C pair, random victim among 1,000,000, median",
        value=core["random_victim"],
        limit=500,
        unit="ns",
        kind="timed",
        how="median of 3,000 batches of 100, the best of 3 runs",
    )


def test_records_are_small(figure, core):
    figure(
        name="oomph's own records a live block, of 1,000,000",
        value=core["record_bytes"],
        limit=200,
        unit="bytes",
        kind="deterministic",
        how="oomph_stats_t.record_bytes / live blocks",
    )


THREADS = """
import ctypes, torch
torch.cuda.init()
run = ctypes.CDLL({library!r}).run_threads
run.restype = ctypes.c_double
run(4, 20_000)
print("rate", max(run(4, 300_000) for _ in range(5)))
"""


def test_four_threads_get_no_less_than_with_pytorchs(figure, tmp_path):
    library = build_with_torch("threads", tmp_path, shared=True)
    snippet = THREADS.format(library=str(library))
    found = alternate(
        lambda side: numbers(run_snippet(snippet, side))["rate"],
        ["native", "expandable", "oomph"],
        rounds=3,
    )
    best = {side: max(values) for side, values in found.items()}
    rates = ", ".join(f"{side} {rate / 1e6:.2f}" for side, rate in best.items())
    figure(
        name="native throughput of 4 threads on 4 streams / oomph's",
        value=max(best["native"], best["expandable"]) / best["oomph"],
        limit=1.0,
        unit="x",
        kind="paired",
        how=f"best of 3 alternating processes, million pairs/s: {rates}",
    )
