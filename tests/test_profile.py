"""The most bytes in use over ranges of places, as backward asks for them."""

from __future__ import annotations

import random

import pytest
from oomph.profile import Profile


def test_nothing_noted_gives_nothing():
    profile = Profile()
    profile.note(7, 100)
    assert profile.most(0, 7) is None
    assert profile.most(0, 8) == 100
    assert profile.most(8, 20) is None


def test_what_is_noted_after_a_question_counts_in_the_next():
    profile = Profile()
    profile.note(1, 10)
    assert profile.most(0, 4) == 10
    profile.note(2, 20)
    assert profile.most(0, 4) == 20
    profile.note(2, 5)  # a lower one of the same place
    assert profile.most(0, 4) == 20


@pytest.mark.parametrize("seed", range(200))
def test_ranges_that_go_down_and_start_again_give_what_a_search_gives(seed):
    chance = random.Random(seed)
    profile, noted = Profile(), {}
    for _ in range(chance.randrange(20)):
        place, size_bytes = chance.randrange(30), chance.randrange(50)
        profile.note(place, size_bytes)
        noted[place] = max(noted.get(place, 0), size_bytes)
    first = end = 30
    for _ in range(60):
        if chance.random() < 0.1:  # another backward
            first = end = chance.randrange(31)
        end = max(end - chance.randrange(3), 0)
        first = max(min(first, end) - chance.randrange(4), 0)
        inside = [noted[place] for place in range(first, end) if place in noted]
        assert profile.most(first, end) == max(inside, default=None)
        if chance.random() < 0.1:
            first = end
