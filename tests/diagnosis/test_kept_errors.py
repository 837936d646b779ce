"""What an error that was caught still holds, and who is said to keep it."""

from __future__ import annotations

import gc
import math
import pickle
import re
import sys
import threading
import traceback
import weakref
from unittest import mock

import oomph
import pytest
import torch
from oomph.base import collector
from oomph.base.sizes import format_size
from oomph.diagnosis import forecast
from support import MIB, Simulated, remedies
from test_shortage import Layer, Net, batch, fail, rows, take

forecast.SECONDS_IN_ALL = math.inf
card = Simulated("512MiB,context=0,memory=real", "offload:off,reserve:0,error:full")

KEPT = "kept by errors that were caught"
WHERE = rf"the error of \S+test_shortage.py:{Layer.LINE} \(Layer.forward\)"


def step(model: Net, count: int) -> None:
    model(batch(count)).backward()


def catch(model: Net, count: int = 64) -> torch.OutOfMemoryError:
    try:
        step(model, count)
    except torch.OutOfMemoryError as error:
        return error
    raise AssertionError("there was room")


def named(text: str) -> dict[str, bool]:
    """What is said of errors, and whether it would be enough."""
    return {
        k: v
        for k, v in remedies(text).items()
        if re.search(r"\b(errors?|traceback)\b", k)
    }


def assert_reported(text: str, before: int) -> None:
    """What was said to be kept is what has been freed since the error was read."""
    gc.collect()  # of the second error
    freed = before - torch.cuda.memory_allocated()
    assert rows(text)[KEPT] == format_size(freed), (rows(text), freed / MIB)


@card
def test_what_an_error_in_a_list_holds_is_reported_and_the_list_is_named():
    model = Net().cuda()
    errors = [catch(model)]
    before = torch.cuda.memory_allocated()
    text = fail(lambda: step(model, 24))
    ((action, is_enough),) = named(text).items()
    assert re.match(rf"dropping {WHERE}, kept by `errors`, a list in test_what", action)
    assert is_enough
    errors.clear()
    assert_reported(text, before)
    assert rows(text)[KEPT] == "448.00 MiB"
    step(model, 24)  # which is enough


@card
def test_errors_with_the_same_holder_are_reported_together():
    model = Net().cuda()
    errors = [catch(model, 40), catch(model, 36)]  # each keeps what it had made
    before = torch.cuda.memory_allocated()
    text = fail(lambda: step(model, 24))
    ((action, is_enough),) = named(text).items()
    assert re.match(r"dropping the 2 errors, such as that of \S+ .*`errors`", action)
    assert is_enough
    errors.clear()
    assert_reported(text, before)
    step(model, 24)


@pytest.mark.long
@card
def test_a_model_of_a_trial_that_failed_is_kept_by_its_error():
    def trial(count: int) -> None:
        step(Net().cuda(), count)

    results = {}
    try:
        trial(64)
    except torch.OutOfMemoryError as error:
        results["first"] = error
    before = torch.cuda.memory_allocated()
    text = fail(lambda: trial(64))
    results.clear()
    assert_reported(text, before)


@card
def test_a_traceback_that_is_kept_alone_is_named():
    model = Net().cuda()
    try:
        step(model, 40)
    except torch.OutOfMemoryError:
        kept = sys.exc_info()[2]
    before = torch.cuda.memory_allocated()
    text = fail(lambda: step(model, 40))
    (action,) = named(text)
    assert action.startswith("dropping the traceback, kept by `kept`, a variable in"), (
        action
    )
    assert kept is not None
    del kept
    assert_reported(text, before)


@card
def test_another_error_that_has_gone_through_a_step_is_found_as_well():
    model, kept = Net().cuda(), []

    def interrupted() -> None:
        data = batch(64)
        raise KeyboardInterrupt(data.shape)

    try:
        interrupted()
    except KeyboardInterrupt as error:
        kept.append(error)
    (action,) = named(fail(lambda: step(model, 64)))
    assert action.startswith("dropping the error, kept by `kept`, a list"), action


@card
def test_it_is_not_called_enough_where_the_step_is_too_large_anyway():
    model = Net().cuda()
    errors = [catch(model)]
    assert list(named(fail(lambda: step(model, 64))).values()) == [False]
    assert len(errors) == 1


@card
def test_a_retry_inside_the_except_block_is_told_to_wait_for_its_end():
    model = Net().cuda()
    text = ""
    try:
        step(model, 64)
    except torch.OutOfMemoryError:
        text = fail(lambda: step(model, 24))
    ((action, is_enough),) = named(text).items()
    pattern = rf"trying again after the except block for {WHERE}, not inside it"
    assert re.match(pattern, action)
    assert is_enough
    step(model, 24)


@card
def test_the_last_error_of_a_notebook_is_named():
    gc.unfreeze()  # what came before the tests
    model = Net().cuda()
    sys.last_value = catch(model)
    (action,) = named(fail(lambda: step(model, 24)))
    del sys.last_value
    assert re.match(rf"del sys.last_value: they hold {WHERE}", action)


@card
def test_explain_tells_of_it_as_well():
    model = Net().cuda()
    kept = {"first": catch(model)}
    found = oomph.explain()
    held = {total.name: total.size_bytes for total in found.categories}
    assert held[KEPT] > 300 * MIB
    actions = [remedy.action for remedy in found.remedies]
    assert any("`kept`, a dict" in action for action in actions), actions
    assert len(kept) == 1


LET_GO = {
    "dropped": lambda error: None,
    "without_traceback": lambda error: error.with_traceback(None),
    "cleared": lambda error: [error, traceback.clear_frames(error.__traceback__)],
    "text": str,
}


@card
@pytest.mark.parametrize("how", LET_GO)
def test_an_error_that_holds_nothing_is_not_accused(how):
    model = Net().cuda()
    kept = LET_GO[how](catch(model))
    text = fail(lambda: step(model, 64))
    assert named(text) == {}
    assert KEPT not in rows(text)
    del kept


@card
def test_memory_that_was_there_before_the_step_is_not_the_errors():
    model = Net().cuda()
    data = take(200)
    errors = [catch(model)]
    before = torch.cuda.memory_allocated()
    text = fail(lambda: step(model, 24))
    errors.clear()
    assert_reported(text, before)
    assert data.numel() == 200 * MIB


@card
def test_it_does_not_go_with_the_error_to_another_process():
    error = catch(Net().cuda())
    again = pickle.loads(pickle.dumps(error))
    assert vars(error)
    assert vars(again) == {}
    assert str(again) == str(error)


@card
def test_an_error_that_another_thread_handles_is_reported_at_once():
    """No name leads to it: what refers to it was asked of all objects, for seconds."""
    model = Net().cuda()
    is_handled, may_end = threading.Event(), threading.Event()

    def handle() -> None:
        try:
            step(model, 64)
        except torch.OutOfMemoryError:
            is_handled.set()
            may_end.wait()

    thread = threading.Thread(target=handle)
    thread.start()
    is_handled.wait()
    asked = []
    with mock.patch.object(gc, "get_referrers", lambda *few: asked.append(few) or []):
        text = fail(lambda: step(model, 64))
    may_end.set()
    thread.join()
    assert KEPT in rows(text)
    assert asked == []


# ---- Threads that look at the same time


@card
def test_errors_of_threads_that_fail_together_do_not_keep_each_other():
    held = take(400)
    alive = weakref.WeakSet()
    most = []

    def fail_often() -> None:
        for _ in range(6):
            try:
                take(400)
            except torch.OutOfMemoryError as error:
                alive.add(error)
            most.append(len(alive))

    threads = [threading.Thread(target=fail_often) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) <= 2 * len(threads)
    assert len(held) == 400 * MIB


@card
def test_memory_that_a_look_keeps_alive_is_waited_for():
    looks, may_end = threading.Event(), threading.Event()

    def look() -> None:
        with collector.all_objects():
            looks.set()
            may_end.wait()

    thread = threading.Thread(target=look)
    held = take(400)
    thread.start()
    looks.wait()
    del held  # the look keeps it
    threading.Timer(0.5, may_end.set).start()
    held = take(400)
    thread.join()
    assert len(held) == 400 * MIB
