"""What a look at all objects meets."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator

import pytest
import torch
from oomph import _C
from support import Simulated


class Wanted:
    pass


class Derived(Wanted):
    pass


class Pretender:
    @property
    def __class__(self) -> type:
        return Wanted


class WantedModule(types.ModuleType, Wanted):
    pass


@pytest.fixture
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def identities(things: list[object]) -> list[int]:
    return sorted(map(id, things))


def listed(*kinds: type) -> list[int]:
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), kinds)]
    return identities(found)


def test_instances_of_derived_types_are_met_in_every_generation():
    old = [Wanted(), Derived()]
    gc.collect()
    made = [*old, Derived(), Pretender()]
    assert identities(_C.instances(Wanted)) == identities(made[:3])


def test_each_object_that_the_collector_lists_is_met_once():
    for kinds in ((dict, type), (types.ModuleType,), (types.FunctionType, list)):
        met = identities(_C.instances(*kinds))
        assert len(met) == len(set(met))
        missed = set(listed(*kinds)) ^ set(met)
        assert len(missed) <= 4, kinds  # the lists made meanwhile, and their frames'


def test_modules_that_have_two_names_are_met_once(monkeypatch):
    module = WantedModule("twice")
    for i in range(len(sys.modules) + 100):
        monkeypatch.setitem(sys.modules, f"twice_{i}", module)
    assert _C.instances(Wanted) == [module]


@pytest.mark.usefixtures("thawed")
def test_what_is_frozen_is_left_out_and_what_came_after_is_met():
    frozen = Wanted()
    gc.freeze()
    later = Wanted()
    assert _C.instances(Wanted) == [later]
    del frozen


def test_what_is_no_type_is_refused():
    with pytest.raises(TypeError, match="types"):
        _C.instances(Wanted, 3)


@Simulated("1GiB,context=0", "offload:off")
def test_growth_that_rested_is_slow_whenever_a_look_begins_anew():
    """The first scan of a look knows of nothing that stayed: it is no measure."""
    from oomph.leaks.findings import BOUNDED, Finding
    from oomph.leaks.inventory import Inventory
    from oomph.leaks.suspects import Suspect

    kept: list[torch.Tensor] = []

    def scan(inventory: Inventory, number: int, adds: int) -> None:
        kept.extend(torch.zeros(7, 1, 1, 1, 1, device="cuda") for _ in range(adds))
        inventory.scan(number)

    first = Inventory()
    for number in range(20):  # it fills
        scan(first, number, 1)
    (kind,) = {seen.kind for seen in first.kept({s.kind for s in first._seen.values()})}
    suspect = Suspect(Finding("outputs retained", None), {kind}, 0, 20)
    for number in range(20, 40):
        scan(first, number, 1)
        suspect.follow(first)
    again = Inventory()  # it has long been full, but for a few
    scan(again, 400, 0)
    suspect.follow(again)
    for number in (790, 791, 792, 793):
        scan(again, number, 1)
        suspect.follow(again)
    told = suspect.told(certain_rounds=500, at_end=False)
    assert told is not None
    assert told.certainty == BOUNDED
