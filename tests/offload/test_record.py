"""What a step showed, as it would be otherwise."""

from __future__ import annotations

import math
import weakref

from hypothesis import given
from hypothesis import strategies as st
from oomph.offload.record import Event, Step
from oomph.offload.segments import Watched
from oomph.recompute.calls import Call, CallTree
from torch import nn


def step_of(sizes: list[int], temporary_bytes: int = 0) -> Step:
    """Saves storages of these sizes and uses them, the last first, beside 100 bytes.

    The last is used with so much more beside.
    """
    events, total = [], 100
    for place, size_bytes in enumerate(sizes):
        total += size_bytes
        events.append(Event(place, False, total, total))
    for place in reversed(range(len(sizes))):
        need_bytes = total + (temporary_bytes if place == len(sizes) - 1 else 0)
        events.append(Event(place, True, need_bytes, need_bytes))
        total -= sizes[place]
    return Step(events=events, saves=list(enumerate(sizes)))


def test_a_step_of_which_enough_may_leave_stays_as_it_is():
    step = step_of([50] * 8)
    assert step.reachable(250) is step.reachable(math.inf) is step


def test_what_fits_in_no_way_is_the_last_that_was_saved():
    step = step_of([50, 50, 50, 50, 600]).reachable(300)
    assert step.saves == [(0, 50), (1, 50), (2, 50), (3, 50)]
    # The two before it have not left so soon.
    assert step.most_bytes() == 300 + 2 * 50 + 50
    assert [event.need_bytes for event in step.events[:4]] == [150, 200, 250, 300]


def test_what_a_moment_needs_beside_is_as_much_as_there_can_be_room_for():
    before = step_of([50] * 8)
    step = step_of([50] * 8, temporary_bytes=1000).reachable(300)
    assert step.saves == before.saves
    assert step.most_bytes() == 300 + 7 * 50  # all that has left but what it uses


def test_what_may_run_again_need_not_be_there():
    step = step_of([50, 50, 50, 50, 600])
    assert step.reachable(300, again={4}).saves == step.saves


@given(
    st.lists(st.integers(1, 500), min_size=3, max_size=12),
    st.integers(0, 1000),
    st.integers(120, 2000),
)
def test_what_is_reachable_is_reached(sizes, temporary_bytes, limit_bytes):
    step = step_of(sizes, temporary_bytes).reachable(limit_bytes)
    assert step.reachable(limit_bytes) is step


def test_of_calls_that_are_alike_all_take_as_long_as_the_fastest():
    module, other = nn.ReLU(), nn.GELU()
    tree = CallTree(0)
    for number, (kind, gain_bytes) in enumerate(
        [(module, 10), (module, 10), (other, 10), (module, 20)]
    ):
        name = type(kind).__name__
        call = Call((id(kind), number), weakref.ref(kind), name, -1, number)
        call.end, call.gain_bytes = number + 1, gain_bytes
        tree.calls.append(call)
        tree.marks += [(number, False), (number, True)]
    watched = Watched(step_of([10, 10, 10, 20]), [tree])
    watched.choose(1, lambda _: True)
    ms = {c.key: ms for c, ms in zip(tree.calls, (7.0, 2.0, 5.0, 9.0), strict=True)}
    blocks = sorted(watched.blocks(ms), key=lambda block: block.first)
    assert [block.ms for block in blocks] == [2.0, 2.0, 5.0, 9.0]
