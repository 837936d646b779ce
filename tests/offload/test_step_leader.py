"""Which optimizer ends an iteration of the loop."""

from __future__ import annotations

import threading

import pytest
from oomph.steps.leader import StepLeader


class Optimizer:
    pass


def ends(order: str) -> str:
    """Which of the steps, a letter for each optimizer, end an iteration."""
    leader = StepLeader()
    optimizers = {name: Optimizer() for name in set(order)}
    return "".join("|" if leader.end_with(optimizers[name]) else "." for name in order)


@pytest.mark.parametrize(
    ("order", "wanted"),
    [
        ("aaaa", "||||"),
        ("abababab", "|.|.|.|."),
        ("abcabcabc", "|..|..|.."),
        ("aaabaaabaaab", "||||...|...|"),  # b is known from its first step on
        ("baaabaaabaaa", "|...|...|..."),
        ("a" * 5 + "b" * 20, "|||||" + "|" * 20),  # a second phase
        ("b" + "a" * 20, "|" + "." * 16 + "||||"),  # b never comes again
    ],
)
def test_the_one_that_steps_most_seldom_ends_a_turn(order, wanted):
    assert ends(order) == wanted


def test_what_changes_its_hash_and_is_equal_to_others_is_told_apart():
    class Metric(Optimizer):
        seen = 0

        def __hash__(self):
            return self.seen

        def __eq__(self, other):
            return True

    leader, metric, model = StepLeader(), Metric(), Metric()
    ended = []
    for _ in range(3):
        for each in (metric, model, model):
            ended.append(leader.end_with(each))
            metric.seen += 1
    assert ended == [True, False, False] * 3


def test_each_thread_has_turns_of_its_own():
    leader, a, b = StepLeader(), Optimizer(), Optimizer()
    assert leader.end_with(a)
    found = []
    thread = threading.Thread(target=lambda: found.append(leader.end_with(b)))
    thread.start()
    thread.join()
    assert found == [True]
    assert not leader.end_with(b)


def test_an_optimizer_that_is_gone_ends_no_turn():
    leader, a, b = StepLeader(), Optimizer(), Optimizer()
    leader.end_with(a)
    del a
    assert [leader.end_with(b), leader.end_with(b)] == [True, True]
