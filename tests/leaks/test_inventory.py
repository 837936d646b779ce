"""What a look at all objects meets."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator

import pytest
from oomph import _C


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
