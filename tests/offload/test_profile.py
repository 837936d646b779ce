"""The most bytes in use over ranges of places, as backward asks for them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from oomph.offload.range_max import RangeMax


def test_nothing_noted_gives_nothing():
    profile = RangeMax()
    profile.note(7, 100)
    assert profile.most(0, 7) is None
    assert profile.most(0, 8) == 100
    assert profile.most(8, 20) is None


def test_what_is_noted_after_a_question_counts_in_the_next():
    profile = RangeMax()
    profile.note(1, 10)
    assert profile.most(0, 4) == 10
    profile.note(2, 20)
    assert profile.most(0, 4) == 20
    profile.note(2, 5)  # a lower one of the same place
    assert profile.most(0, 4) == 20


places = st.integers(0, 30)
steps_down = st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans())


@given(
    notes=st.lists(st.tuples(places, st.integers(0, 50)), max_size=20),
    passes=st.lists(st.tuples(places, st.lists(steps_down, max_size=20)), max_size=4),
)
def test_ranges_that_go_down_and_start_again_give_what_a_search_gives(notes, passes):
    profile = RangeMax()
    for place, size_bytes in notes:
        profile.note(place, size_bytes)
    for start, steps in passes:  # each a backward
        first = end = start
        for end_down, first_down, widens in steps:
            end = max(end - end_down, 0)
            first = max(min(first, end) - first_down, 0)
            inside = [size for place, size in notes if first <= place < end]
            assert profile.most(first, end) == max(inside, default=None)
            if widens:
                first = end
