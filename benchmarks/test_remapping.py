"""How many pages move in a step that repeats, on a card that is nearly full?"""

from __future__ import annotations

import pytest
from programs import PROGRAMS
from support import MIB, must_run

STEPS = "10"
REPEATING = [program for program in PROGRAMS if program.repeats]


@pytest.fixture(scope="module")
def peaks() -> dict[str, int]:
    return {}


@pytest.mark.parametrize(("ratio", "limit"), [(1.02, 0.05), (1.2, 0.0)])
@pytest.mark.parametrize("program", REPEATING, ids=lambda program: program.name)
def test_repeated_steps_move_few_pages(figure, peaks, program, ratio, limit):
    arguments = [*program.arguments, "--steps", STEPS]
    if program.name not in peaks:
        large = must_run(program.script, program.arguments, card="96GiB,context=0")
        peaks[program.name] = large.stats["allocated_bytes.all.peak"]
    peak = peaks[program.name]
    result = must_run(
        program.script,
        arguments,
        card=f"{int(peak * ratio)},context=0",
        settings="offload:off,reserve:0",
    )
    moved = result.stats["step_remapped_bytes"]
    figure(
        name=f"bytes remapped in a step at {ratio} x the peak, {program.name}",
        value=moved / peak,
        limit=limit,
        unit="of the bytes in use",
        kind="deterministic",
        how=f"the last of {STEPS} steps: {moved / MIB:.0f} MiB; "
        f"{result.stats['pages_remapped']} pages in all steps, "
        f"{result.stats['planned_hits']} allocations as planned",
    )
