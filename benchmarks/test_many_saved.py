"""Does a saved tensor cost the same, however many a step saves?"""

from __future__ import annotations

import json

import pytest
from many_saved import FLOATS, STEPS
from support import MIB, ROOT, must_run

FEW, MANY = 1_000, 16_000
LIMIT = 1.2
SCRIPT = ROOT / "benchmarks" / "many_saved.py"


def steps_of(count: int, habit: str, *options: str) -> list[dict[str, int]]:
    """What the hooks did in each step, with room for half of what is saved."""
    limit_bytes = count * FLOATS * 4 // 2 + 100 * MIB
    result = must_run(
        SCRIPT,
        [str(count), habit, *options],
        card="96GiB,host=120GiB",
        settings=f"recompute:off,host_limit:100GiB,device_limit:{limit_bytes}",
    )
    return json.loads(result.output.splitlines()[-1])


@pytest.mark.parametrize("habit", ["plain", "reuse", "hold"])
def test_what_a_saved_tensor_costs_does_not_grow_with_their_number(figure, habit):
    few, many = (steps_of(count, habit, "--lines") for count in (FEW, MANY))
    assert few[-1]["sent"] > 0 and many[-1]["sent"] > 0
    lines = [
        sum(step["lines"] for step in steps) / (STEPS - 1) / count
        for steps, count in ((few, FEW), (many, MANY))
    ]
    us = [steps_of(count, habit)[-1]["ns"] / 1e3 / count for count in (FEW, MANY)]
    figure(
        name=f"lines for a saved tensor, {MANY:,} in a step / {FEW:,}, {habit}",
        value=lines[1] / lines[0],
        limit=LIMIT,
        unit="x",
        kind="deterministic",
        how=f"{lines[0]:.0f} and {lines[1]:.0f} lines of oomph's Python, to be saved "
        f"and used; in the last of {STEPS} steps {us[0]:.0f} and {us[1]:.0f} us",
    )
