"""Does a program of other hands need a larger card under oomph than under PyTorch?"""

from __future__ import annotations

import pytest
from allocators import keep, measure, names


@pytest.mark.parametrize("name", names())
def test_no_program_needs_a_larger_card(figure, name):
    row = measure(name)
    keep(row)
    least = {way: row[way]["smallest_bytes"] for way in ("native", "expandable")}
    figure(
        name=f"smallest card with oomph / the smaller of PyTorch's two, {name}",
        value=row["oomph"]["smallest_bytes"] / min(least.values()),
        limit=1.0,
        unit="x",
        kind="deterministic",
        how=f"a trace replayed, the smallest card bisected, in bytes: {row}",
    )
