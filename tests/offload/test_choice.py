"""Which of what a step saves is chosen to leave."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from oomph.offload.select import select


def test_the_earliest_leave_up_to_the_target():
    assert select([(0, 10), (1, 10), (2, 10)], 20) == [(0, 10), (1, 10)]


def test_all_leave_if_that_is_not_enough():
    saves = [(0, 10), (1, 30), (2, 10)]
    assert sorted(select(saves, 60)) == saves
    assert sorted(select(saves, math.inf)) == saves


def test_nothing_leaves_without_a_target():
    assert select([(0, 10), (1, 30)], 0) == []


def test_smaller_ones_that_come_later_fill_what_a_large_one_would_exceed():
    assert select([(0, 10), (1, 100), (2, 10)], 20) == [(0, 10), (2, 10)]


def test_where_a_large_one_must_leave_the_latest_stay_that_are_not_needed_with_it():
    saves = [(0, 30), (1, 30), (2, 100)]
    assert sorted(select(saves, 110)) == [(0, 30), (2, 100)]


def test_the_smallest_of_the_large_ones_fills_the_rest():
    assert sorted(select([(0, 10), (1, 90), (2, 50)], 40)) == [(2, 50)]


@given(sizes=st.lists(st.integers(1, 60), max_size=12), target=st.integers(1, 300))
def test_what_is_chosen_fills_the_target_with_none_that_could_stay(sizes, target):
    saves = list(enumerate(sizes))
    chosen = select(saves, target)
    assert set(chosen) <= set(saves) and len(set(chosen)) == len(chosen)
    sent = sum(size for _, size in chosen)
    if sent < target:
        assert sorted(chosen) == saves
    else:
        assert all(sent - size < target for _, size in chosen)
