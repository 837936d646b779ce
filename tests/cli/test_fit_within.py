"""``oomph fit`` says within a time what it knows, and what was not run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from oomph import fit, simulate
from oomph.fitting import answers, cards, limit, progress, runs
from oomph.fitting.limit import Limit
from oomph.fitting.measuring import Place, Script, Way
from oomph.fitting.process.extent import Extent
from oomph.fitting.process.record import Record
from oomph.fitting.runs import Runs
from oomph.fitting.varying import Option, Search
from support import GIB, MIB, oomph

Stop = Callable[[], bool]
RUN_S = 10
ROOMY = Record(
    *("steps", 0, 6),
    allocated_bytes=3 * GIB,
    reserved_bytes=4 * GIB,
    other_bytes=GIB // 2,
    trace=(1,),
    guesses=3,
    seconds=RUN_S,
)


class Machine:
    """Runs what takes 3 GiB for a value of 8, by a clock of its own."""

    def __init__(self, monkeypatch) -> None:
        self.now_s = 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        monkeypatch.setattr(limit, "time", clock)
        monkeypatch.setattr(runs, "measure", self.measure)
        monkeypatch.setattr(simulate, "check", lambda card: None)

    def measure(self, _, script: Script, place: Place, ends: Stop) -> Record:
        self.now_s += RUN_S
        if ends():
            return Record("error", 1)
        share = int(script.variables.get("BATCH", "8")) / 8
        need = replace(
            ROOMY,
            allocated_bytes=int(share * ROOMY.allocated_bytes),
            reserved_bytes=int(share * ROOMY.reserved_bytes),
        )
        least = need.allocated_bytes + (200 * MIB if place.way is Way.NATIVE else 0)
        if place.way is Way.RESCUE:
            least //= 2
        memory = simulate.parse_card(place.card).memory_bytes
        ran_out = "device_limit" in place.limits
        if ran_out or memory < least + need.other_bytes:
            return replace(need, ending="oom", exit_code=1)
        return need


def ask(monkeypatch, within_s):
    machine = Machine(monkeypatch)
    targets = cards.targets("2GiB,4GiB,12GiB", "64GiB")
    asked = Runs(None, Script("x"), progress.silent(), Limit(within_s), targets[-1])
    asked.roomy(targets[-1], Way.OOMPH)
    return answers.find_by(asked, targets, 1), machine


def vary(monkeypatch, within_s):
    machine = Machine(monkeypatch)
    targets = cards.targets("2GiB,4GiB,12GiB", "64GiB")
    option = Option("BATCH", [*map(str, range(1, 65))])
    asked = (None, Script("x"), option, progress.silent(), targets[-1], Limit(within_s))
    search = Search(*asked)
    search.begin()
    return [search.largest(card, way) for card in targets for way in Way], machine


def test_what_is_known_in_time_is_what_is_known_without_a_limit(monkeypatch):
    whole, machine = ask(monkeypatch, math.inf)
    assert not whole.not_run and not whole.unsure
    unknown = set()
    for within_s in range(0, int(machine.now_s), 3 * RUN_S):
        found, clock = ask(monkeypatch, within_s)
        assert clock.now_s <= within_s + 2 * RUN_S
        for one, other in zip(found.answers, whole.answers, strict=True):
            assert not one.is_known or one.fits == other.fits
        for way, size in found.smallest.items():
            assert size is None or size >= whole.smallest[way]
            assert way in found.unsure or size == whole.smallest[way]
            fits = [
                a.card.memory_bytes for a in found.answers if a.way is way and a.fits
            ]
            assert not fits or size <= min(fits)
        unknown.add(sum(not each.is_known for each in found.answers))
        assert found.not_run
        assert "The time for the question was up" in found.table()
    assert len(unknown) > 3


def test_a_value_that_fits_is_between_what_is_known_in_time(monkeypatch):
    whole, machine = vary(monkeypatch, math.inf)
    assert all(each.is_known for each in whole)
    open_count = set()
    for within_s in range(0, int(machine.now_s), 7 * RUN_S):
        found, clock = vary(monkeypatch, within_s)
        assert clock.now_s <= within_s + 2 * RUN_S
        for one, other in zip(found, whole, strict=True):
            assert int(one.value or 0) <= int(other.value or 0)
            assert int(one.most or 64) >= int(other.value or 0) or one.is_known
            assert not one.is_known or one.value == other.value
        open_count.add(sum(not each.is_known for each in found))
    assert len(open_count) > 3


@pytest.mark.parametrize("ahead_more", [(), ("first", "left out")])
def test_batches_that_are_left_out_count_for_an_allocator_of_blocks(
    ahead_more, monkeypatch
):
    def measure(_, script: Script, place: Place, ends: Stop) -> Record:
        found = replace(ROOMY, until=8, ahead=("first",), ahead_more=ahead_more)
        extent = script.extent
        is_whole = "left out" in extent.ahead
        assert extent.until in (9 if is_whole else 8, 0)
        is_small = is_whole and "GiB" in place.card.partition("TiB")[0]
        return replace(found, ending="oom", exit_code=1) if is_small else found

    monkeypatch.setattr(runs, "measure", measure)
    card = cards.targets("8GiB", "64GiB")[0]
    script = Script("x", extent=Extent(looks_on=True))
    asked = Runs(None, script, progress.silent(), Limit(), card)
    fits = [asked.answer(card, way).fits for way in Way]
    assert fits == [not ahead_more, True, True, True]


def test_the_first_run_is_not_ended_and_the_others_have_time_by_it(monkeypatch):
    machine = Machine(monkeypatch)
    found = Limit(None)
    for now_s, is_late in ((500.0, False), (1999.0, False), (2001.0, True)):
        machine.now_s = now_s
        found.begin()  # the first time alone counts
        assert found.is_late() is is_late


def test_the_command_says_what_was_not_run(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import torch\nx = torch.zeros(1 << 28, device='cuda')\n")
    result = oomph("fit", "--gpu", "8GiB", "--within", "0", "--with", "native", path)
    assert result.code == 1, result.said
    row = next(line.split() for line in result.out.splitlines() if "8GiB" in line)
    assert row[3:] == ["not", "run", "not", "run", "fits", "fits", "-", "-"]
    assert "not run, or not to their end: 8GiB (PyTorch); 8GiB (expand" in result.out


WAITS = """
import os, time, torch
while True:
    try:
        w = torch.zeros(300 << 18, device="cuda")
        break
    except torch.OutOfMemoryError:
        time.sleep(0.1)
"""


@pytest.mark.long
def test_a_script_that_waits_for_memory_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "_PATIENCE_S", 2.0)
    path = tmp_path / "script.py"
    path.write_text(WAITS)
    card = "256MiB,context=0,host=1GiB"
    found = fit([str(path)], card, brief=True)
    assert [each.gave_up for each in found.answers] == [True, True, True, False]
    assert found.fits() and not found.fits("native")
    assert "too slow" in found.table()
    assert "perhaps the script waits for memory" in found.table()
