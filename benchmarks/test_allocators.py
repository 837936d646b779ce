"""Allocators asked for the same, by the trace of each program of other hands.

Writes results/allocators.json and docs/allocators.md, as allocators.py does.
"""

import allocators
import pytest
from support import GIB


@pytest.mark.parametrize("name", allocators.names())
def test_a_trace_needs_no_larger_card_under_oomph(figure, name):
    row = allocators.measure(name)
    allocators.keep(row)
    sizes = {way: row[way]["smallest_bytes"] for way in allocators.WAYS}
    figure(
        name=f"smallest card for a trace / that of PyTorch's best, {name}",
        value=sizes["oomph"] / min(sizes.values()),
        limit=1.02,  # each is found to one part in 128
        unit="x",
        kind="deterministic",
        how=", ".join(f"{way} {size / GIB:.2f} GiB" for way, size in sizes.items()),
    )
