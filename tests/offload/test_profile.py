"""The most of ranges, as backward asks for them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from oomph.base.range_max import RangeMax


@given(
    numbers=st.lists(st.integers(0, 50), max_size=40),
    ranges=st.lists(st.tuples(st.integers(-3, 45), st.integers(-3, 45)), max_size=20),
)
def test_ranges_give_what_a_search_gives(numbers, ranges):
    row = RangeMax(numbers)
    for first, end in ranges:
        inside = numbers[max(first, 0) : max(end, 0)]
        assert row.most(first, end) == max(inside, default=0)
