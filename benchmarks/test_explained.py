"""Is the error's report right, and what do call sites and the report cost?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import alternate, numbers, on_simulated_card, run_snippet

FOLDER = Path(__file__).parent
BLOCKS = 100_000


def run(program: str, *arguments: str, card: str) -> str:
    """A program under oomph on a card of its own."""
    return subprocess.check_output(
        [sys.executable, FOLDER / program, *arguments],
        text=True,
        env={
            **on_simulated_card(),
            "OOMPH_SIMULATE": card,
            "OOMPH_CONF": "offload:off,reserve:0",
        },
    )


@pytest.mark.parametrize("program", ["gpt", "cnn", "lstm"])
def test_bytes_are_put_into_the_right_category(figure, program):
    text = run("explained.py", program, card="8GiB,context=0,memory=real")
    shortages = json.loads(text)
    assert len(shortages) > 10, "too few shortages to judge by"
    wrong = max(s["wrong"] / (s["wrong"] + s["right"]) for s in shortages)
    unknown = max(s["unknown"] / (s["wrong"] + s["right"]) for s in shortages)
    how = f"the worst of {len(shortages)} shortages in forward, backward and step"
    for name, value in (("in the wrong category", wrong), ("unknown", unknown)):
        figure(
            name=f"bytes {name}, {program}",
            value=100 * value,
            limit=2,
            unit="%",
            kind="deterministic",
            how=how,
        )


@pytest.mark.parametrize("how", ["variables", "graph"])
def test_a_report_of_many_blocks_is_made_quickly(figure, how):
    card = "200GiB,context=0"
    runs = [
        numbers(run("live_blocks.py", how, str(BLOCKS), card=card)) for _ in range(3)
    ]
    assert all(run["lines"] > 4 and run["allocations"] == 0 for run in runs)
    figure(
        name=f"report with {BLOCKS:,} live blocks held by {how}",
        value=min(run["best_s"] for run in runs),
        limit=0.5,
        unit="s",
        kind="timed",
        how=f"the best of 9; first of a process: {runs[0]['first_s']:.2f} s",
    )
    figure(
        name=f"host memory for it, held by {how}",
        value=max(run["host_MiB"] for run in runs),
        limit=50,
        unit="MiB",
        kind="timed",
        how="growth of the process's peak, the most of 3",
    )


# The functions between the user's line and the allocation are a library's, as those of
# a module's forward are.
PAIR = """
import time, torch
from torch import nn
{before}

SOURCE = '''
class Probe(nn.Module):
    def forward(self, count):
        take, give = (
            torch._C._cuda_cudaCachingAllocator_raw_alloc,
            torch._C._cuda_cudaCachingAllocator_raw_delete,
        )
        stream = torch.cuda.current_stream().cuda_stream
        best = float("inf")
        for _ in range(30):
            start = time.perf_counter_ns()
            for _ in range(count):
                give(take({size}, stream))
            best = min(best, time.perf_counter_ns() - start)
        return best / count
'''
exec(compile(SOURCE, "/site-packages/probe.py", "exec"))
torch.cuda.init()
inner = nn.Sequential(nn.Sequential(Probe()))
print("ns", inner(20_000))
"""
STOPPED = "from oomph import _C; _C.sites_stop()"


def test_a_call_site_costs_less_than_100_ns(figure):
    snippets = {
        "with": PAIR.format(before="", size=2 << 20),
        "without": PAIR.format(before=STOPPED, size=2 << 20),
    }
    found = alternate(
        lambda way: numbers(run_snippet(snippets[way], "oomph"))["ns"],
        ["without", "with"],
    )
    best = {way: min(values) for way, values in found.items()}
    figure(
        name="reading the call site of an allocation",
        value=best["with"] - best["without"],
        limit=100,
        unit="ns",
        kind="paired",
        how=f"alternating processes, best: with {best['with']:.0f}, without "
        f"{best['without']:.0f} ns a pair of 2 MiB",
    )
