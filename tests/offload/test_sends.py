"""Which storages leave a device, from the record of a step."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from oomph.offload.sends import Stay, choose


def row(*sizes: int) -> tuple[list[int], list[Stay]]:
    """A step that saves these one after another, and uses them in turn from the last.

    Gives what it needs at each event, and the storages.
    """
    count = len(sizes)
    saved = [sum(sizes[: i + 1]) for i in range(count)]
    used = [sum(sizes[: count - i]) for i in range(count)]
    stays = [Stay(i, 2 * count - 1 - i, size) for i, size in enumerate(sizes)]
    return [*saved, *used], stays


def most_after(needs: list[int], stays: list[Stay], leaving: set[int]) -> int:
    """The most in use at any event, if these leave."""
    return max(
        need - sum(s.bytes for s in map(stays.__getitem__, leaving) if is_away(s, at))
        for at, need in enumerate(needs)
    )


def is_away(stay: Stay, at: int) -> bool:
    return stay.first + 2 <= at <= stay.last


def test_nothing_leaves_where_all_fits():
    needs, stays = row(10, 10, 10)
    choice = choose(needs, stays, 30)
    assert (choice.leaving, choice.missing_bytes, choice.short_bytes) == (set(), 0, 0)


def test_the_earliest_leave_that_are_used_last():
    needs, stays = row(10, 10, 10, 10)
    choice = choose(needs, stays, 25)
    assert (choice.leaving, choice.missing_bytes, choice.short_bytes) == ({0, 1}, 15, 0)


def test_what_has_just_been_saved_is_still_there():
    needs, stays = row(10, 10, 100)
    choice = choose(needs, stays, 50)
    assert choice.leaving >= {0}
    assert choice.short_bytes == 60  # at the event at which the last is saved


def test_what_is_used_early_stays_where_memory_is_short_later():
    # The first is used between the two others, and not away when memory is short.
    needs = [0, 30, 30, 30, 60, 90, 90, 60]
    stays = [Stay(0, 3, 30), Stay(3, 7, 30), Stay(4, 7, 30)]
    assert choose(needs, stays, 70).leaving == {1}


def test_of_the_large_ones_the_smallest_leaves():
    stays = [Stay(0, 9, 90), Stay(1, 8, 50), Stay(2, 7, 70)]
    assert choose([0, 0, 0, 0, 0, 240, 0, 0, 0, 0], stays, 200).leaving == {1}


def test_with_a_large_one_the_small_ones_stay_that_are_not_needed_any_more():
    stays = [Stay(0, 9, 30), Stay(1, 8, 30), Stay(2, 7, 100)]
    assert choose([0, 0, 0, 0, 0, 160, 0, 0, 0, 0], stays, 50).leaving == {0, 2}


def test_a_large_one_stays_that_is_used_at_once():
    needs = [0, 100, 100, 130, 130, 130, 100, *[0] * 33]
    soon, later = Stay(0, 5, 100), Stay(0, 6, 100)
    choice = choose(needs, [soon], 120)
    assert (choice.leaving, choice.missing_bytes, choice.short_bytes) == (set(), 10, 10)
    assert choose(needs, [later], 120).leaving == {0}
    assert choose(needs, [soon], 30).leaving == {0}  # as much would be on the host


def test_what_leaves_already_counts():
    needs, stays = row(10, 10, 10, 10)
    assert choose(needs, stays, 25, before=[1]).leaving == {0, 1}
    assert choose(needs, stays, 35, before=[1]).leaving == {1}


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=7),
    share=st.floats(0.1, 1.2),
)
def test_what_leaves_is_enough_if_anything_is(sizes, share):
    needs, stays = row(*sizes)
    limit = sum(sizes) * share
    choice = choose(needs, stays, limit)
    reached = most_after(needs, stays, set(choice.leaving))
    assert choice.missing_bytes == max(max(needs) - limit, 0)
    if choice.short_bytes == 0:
        assert reached <= limit
    else:
        assert most_after(needs, stays, set(range(len(stays)))) > limit


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6))
def test_what_leaves_is_hardly_more_than_the_least_that_does(sizes):
    needs, stays = row(*sizes)
    limit = sum(sizes) * 0.6
    choice = choose(needs, stays, limit)
    if choice.short_bytes > 0:
        return
    every = range(len(stays))
    enough = (
        sum(sizes[i] for i in some)
        for count in range(len(stays) + 1)
        for some in combinations(every, count)
        if most_after(needs, stays, set(some)) <= limit
    )
    sent = sum(sizes[i] for i in choice.leaving)
    assert sent <= min(enough) + max(sizes)
