"""How many iterations a loop has, and what all of them come to."""

from __future__ import annotations

import itertools
import math
import re

import pytest
import torch
from forecasts import peak_bytes, text_within
from oomph.base.sizes import parse_size
from oomph.diagnosis import forecast
from oomph.diagnosis.wording import brief
from oomph.replay.statements import stack_of, stretches
from oomph.replay.turns import turns
from support import MIB, Simulated
from torch import nn

forecast.SECONDS_IN_ALL = math.inf
card = Simulated("4GiB,context=0", "offload:off,reserve:0,error:full")
BATCHES = [1, 2, 3, 4]


def counted(loop) -> int:
    """What is said of the loop that an error ends."""
    try:
        loop()
    except ValueError as error:
        found = [s for s in stretches(stack_of(error.__traceback__)) if s.is_loop]
        return turns(found[0])
    raise AssertionError


def over_a_list() -> None:
    for _ in BATCHES:
        raise ValueError


def counted_and_reversed() -> None:
    for _, _ in enumerate(reversed(BATCHES)):
        raise ValueError


def over_a_range(length: int = 10) -> None:
    for _ in range(1, length, len(BATCHES)):
        raise ValueError


def with_a_break_within() -> None:
    for _ in BATCHES:
        for _ in BATCHES:
            break
        raise ValueError


def that_may_break() -> None:
    for batch in BATCHES:
        if batch > 2:
            break
        raise ValueError


def over_what_is_called() -> None:
    for _ in itertools.islice(BATCHES, 2):
        raise ValueError


def over_a_generator() -> None:
    for _ in (batch for batch in BATCHES):
        raise ValueError


def while_it_is_true() -> None:
    while BATCHES:
        raise ValueError


@pytest.mark.parametrize(
    ("loop", "count"),
    [
        (over_a_list, 4),
        (counted_and_reversed, 4),
        (over_a_range, 3),
        (with_a_break_within, 4),
        (that_may_break, 0),
        (over_what_is_called, 0),
        (over_a_generator, 0),
        (while_it_is_true, 0),
    ],
)
def test_iterations_are_counted_where_nothing_need_run(loop, count):
    assert counted(loop) == count


@card
@pytest.mark.parametrize(("fraction", "is_enough"), [(0.5, True), (0.09, None)])
def test_all_iterations_of_a_loop_that_grows_are_foreseen(fraction, is_enough):
    """To move what it keeps is not known to do where one of them hardly fits."""
    import oomph

    layers = (nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(2))
    net = nn.Sequential(*layers).cuda().eval()
    batches = [torch.ones(8192, 1024)] * 64

    def evaluate() -> None:
        kept = []
        with torch.no_grad():
            for _, x in enumerate(batches):
                kept.append(net(x.cuda()))

    true = peak_bytes(evaluate)
    text = text_within(fraction * true, evaluate)
    found = re.search(r"adds 32.00 MiB; all 64 iterations need about (\S+ GiB)", text)
    assert found, text
    needed = parse_size(found[1].replace(" ", ""))
    assert needed == pytest.approx(true, rel=0.02), (needed / MIB, true / MIB, text)
    first = next(r for r in oomph.last_oom().remedies if r.action.startswith(".cpu()"))
    assert first.enough is is_enough


@card
@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.8])
def test_what_a_loop_joins_is_foreseen_with_what_each_remedy_comes_to(fraction):
    """The longer one is there beside the shorter, and smaller batches join as much."""
    import oomph

    net = nn.Sequential(nn.Linear(1024, 1024), nn.GELU()).cuda().eval()
    batches = [torch.ones(8192, 1024)] * 32

    def evaluate() -> None:
        kept = None
        with torch.no_grad():
            for x in batches:
                out = net(x.cuda())
                kept = out if kept is None else torch.cat([kept, out])

    true = peak_bytes(evaluate)
    text = text_within(fraction * true, evaluate)
    found = re.search(r"adds 32.00 MiB; all 32 iterations need about (\S+ GiB)", text)
    assert found, text
    needed = parse_size(found[1].replace(" ", ""))
    assert needed == pytest.approx(true, rel=0.03), (needed / MIB, true / MIB, text)
    remedies = oomph.last_oom().remedies
    assert remedies[0].enough
    assert "(not enough alone)" in text
    assert len(brief(oomph.last_oom())) <= 11
    for remedy in remedies:
        if remedy.action.startswith(".cpu()"):
            assert remedy.enough
        if remedy.action.startswith("batch"):
            assert remedy.enough is False


@card
def test_a_smaller_batch_is_not_called_enough_for_what_a_list_collects():
    """What is in the list already is cut with the batch as the step runs again."""
    import oomph

    net = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
    net.cuda().eval()
    loader = [torch.ones(4096, 1024)] * 32

    def evaluate() -> None:
        kept = []
        with torch.no_grad():
            for x in loader:
                kept.append(net(x.cuda()))

    text = text_within(0.7 * peak_bytes(evaluate), evaluate)
    assert "all 32 iterations need" in str(text)
    remedies = oomph.last_oom().remedies
    batches = [r.enough for r in remedies if r.action.startswith("batch")]
    assert batches
    assert not any(batches)
    assert remedies[0].enough


@card
def test_steps_that_grow_are_said_to_need_more_later():
    """A buffer that fills with each step: no remedy is known to be enough."""
    import oomph

    net = nn.Sequential(nn.Linear(1024, 1024), nn.GELU()).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    buffer: list[torch.Tensor] = []

    def learn() -> None:
        x = torch.stack(buffer[-4:]).flatten(0, 1)
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    def train() -> None:
        buffer.clear()
        for _ in range(60):
            buffer.append(torch.ones(2048, 1024, device="cuda"))
            learn()

    text = text_within(0.6 * peak_bytes(train), train)
    assert "Each of the last steps left 8.00 MiB more than the one before" in str(text)
    assert not any(remedy.enough for remedy in oomph.last_oom().remedies)
