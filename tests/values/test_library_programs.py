"""Libraries of other hands give under oomph what they give without it, bit for bit."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
from library_loop import STEPS
from library_programs import PROGRAMS
from library_trainers import TRAINERS
from support import Simulated

CARD = "1GiB,context=0,memory=values,cc=8.6,host=4GiB"
ALONE = {"HF_HUB_OFFLINE": "1"}
native = Simulated(CARD, None, **ALONE)
installed = Simulated(CARD, "reserve:0,host_limit:2GiB", **ALONE)
Values = dict[str, Any]
SINGLE = ["lightning"]  # one layer, which saves its input alone
UNHOOKED = ["torch.func, ensemble"]  # torch.func takes no hooks on what is saved


@functools.cache
def run_natively(name: str) -> tuple[Values, int]:
    return native.call("library_programs", "run_natively", name)


def assert_like_native(name: str, found: Values) -> None:
    __tracebackhide__ = True
    wanted, _ = run_natively(name)
    assert found["losses"] == wanted["losses"]  # as no NaN is
    learned = wanted["learned"]
    assert [k for k in learned if found["learned"][k] != learned[k]] == []


@pytest.mark.long
@pytest.mark.parametrize("name", TRAINERS)
def test_losses_are_those_of_the_cpu(name):
    wanted = native.call("library_programs", "run_on_cpu", name)
    assert len(wanted) == STEPS
    assert all(math.isfinite(loss) and loss != 0 for loss in wanted)
    assert run_natively(name)[0]["losses"] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_with_room_all_values_are_those_of_pytorchs_allocator(name):
    assert_like_native(name, installed.call("library_programs", "values", name))


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_a_card_of_half_of_what_is_needed_they_are_the_same(name):
    limit_bytes = run_natively(name)[1] // 2
    found, rescues, sent_bytes = installed.call(
        "library_programs", "run_short", name, limit_bytes
    )
    print(f"{rescues} rescues, {sent_bytes} bytes sent")
    assert_like_native(name, found)
    assert rescues > 0


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in UNHOOKED])
def test_if_all_that_is_saved_leaves_and_returns_they_are_the_same(name):
    found, sent_bytes = installed.call("library_programs", "run_sent", name)
    print(f"{sent_bytes} bytes sent")
    assert_like_native(name, found)
    assert sent_bytes > 0


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in UNHOOKED])
def test_if_all_that_may_runs_again_they_are_the_same(name):
    found, calls = installed.call("library_programs", "run_again", name)
    print(f"{calls} calls run again")
    assert_like_native(name, found)
    assert calls > 0 or name in SINGLE
