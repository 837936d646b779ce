"""How small a card can a program run on, without anything leaving it?

Measured by bisection on simulated cards without a context, with nothing kept in
reserve, and divided by what PyTorch itself says is the most it ever had allocated
(``max_memory_allocated`` on a large card). Steps are few, but include those before a
plan is in force.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from programs import PROGRAMS, Program
from support import MIB, Result, must_run, run_script

PAGE = 2 * MIB
LARGE = "96GiB,context=0"
PRECISION = 0.0005
SIDES = ["oomph", "expandable", "native"]


def on_card(program: Program, side: str, card_bytes: int) -> Result:
    return run_script(
        program.script,
        program.arguments,
        allocator=side,
        card=f"{card_bytes},context=0",
        settings="offload:off,reserve:0",
    )


def fits(program: Program, side: str, card_bytes: int) -> bool:
    result = on_card(program, side, card_bytes)
    assert result.code == 0 or result.out_of_memory, result.error[-3000:]
    return result.code == 0


def smallest_card(program: Program, side: str, peak_bytes: int) -> int:
    """The smallest card that the program runs on, in whole pages."""
    low, high = peak_bytes // PAGE - 1, peak_bytes * 11 // 10 // PAGE
    while not fits(program, side, high * PAGE):
        low, high = high, high * 11 // 10
    while high - low > max(1, int(PRECISION * high)):
        middle = (low + high) // 2
        if fits(program, side, middle * PAGE):
            high = middle
        else:
            low = middle
    return high * PAGE


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_smallest_card_is_the_peak(figure, program):
    large = must_run(program.script, program.arguments, allocator="native", card=LARGE)
    peak = large.stats["allocated_bytes.all.peak"]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda side: smallest_card(program, side, peak), SIDES)
        ratio = {side: size / peak for side, size in zip(SIDES, found, strict=True)}
    how = ", ".join(f"{side} {value:.4f}" for side, value in ratio.items())
    figure(
        name=f"smallest card / max_memory_allocated, {program.name}",
        value=ratio["oomph"],
        limit=1.01,
        unit="x",
        kind="deterministic",
        how=f"bisection to {PRECISION:.2%}, peak {peak / MIB:.0f} MiB: {how}",
    )
    figure(
        name=f"smallest card / that of expandable segments, {program.name}",
        value=ratio["oomph"] / ratio["expandable"],
        limit=1.0,
        unit="x",
        kind="deterministic",
        how=how,
    )
