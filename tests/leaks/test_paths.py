"""The ways from what a program has names for to what it holds."""

from __future__ import annotations

import gc
import importlib
import sys
import types

import numpy
import pytest
from oomph import _C
from oomph.holders.search import Search

MOST = 1 << 20


class Held:
    pass


class Holder:
    def __init__(self, held: object) -> None:
        self.held = held


def way(target: object, *roots: object, closed: tuple = (), most: int = MOST):
    (path,) = _C.paths((target,), roots, closed, most)
    return path


def is_same(path: list[object], *things: object) -> bool:
    return list(map(id, path)) == list(map(id, things))


def test_the_way_is_told_from_the_target_outwards():
    target = Held()
    inner = [target]
    assert is_same(way(target, outer := [[], inner]), target, inner, outer)


def test_the_shortest_way_counts_and_among_equals_the_earlier_root():
    target = Held()
    far, near, late = [[[target]]], [target], [target]
    assert is_same(way(target, far, near, late), target, near)


def test_an_attribute_is_held_by_its_object_with_or_without_a_dict():
    target = Held()
    holder = Holder(target)
    assert way(target, [holder])[-2] is holder
    assert vars(holder) == {"held": target}  # now it has one
    assert way(target, [holder])[-2] is holder


def test_a_target_may_be_a_root_itself():
    target = Held()
    assert is_same(way(target, [], target), target)


def test_what_no_root_leads_to_has_no_way():
    assert way(Held(), [Held()], {"a": Held()}) is None


def test_a_circle_ends():
    target = Held()
    circle: list[object] = []
    circle += [circle, {"back": circle}, target]
    assert is_same(way(target, circle), target, circle)


def test_what_is_closed_is_not_passed():
    target = Held()
    short, long = [target], [[[target]]]
    assert way(target, [short], long, closed=(short,))[-1] is long
    assert way(target, short, closed=(short,)) is None


def test_modules_are_not_looked_into_but_their_globals_may_be_a_root():
    module = types.ModuleType("apart")
    module.held = target = Held()
    assert way(target, [module]) is None
    assert way(target, [module], vars(module))[-1] is vars(module)


def test_of_functions_the_cells_count_and_not_the_globals():
    target = Held()
    space: dict[str, object] = {"held": target}
    exec("def apart(): pass", space)
    assert way(target, [space["apart"]]) is None

    def closes() -> object:
        return target

    assert way(target, [closes])[-2] is closes


def test_a_suspended_generator_holds_its_variables():
    target = Held()

    def waits(held):
        yield
        del held

    generator = waits(target)
    next(generator)
    assert way(target, [generator])[-2] is generator


def test_arrays_of_objects_hold_what_the_collector_does_not_know_of():
    targets = Held(), Held()
    array = numpy.empty((3, 4), dtype=object)
    array[2, 1], array[0, 3] = targets
    others = [numpy.zeros(3), numpy.array(["2026-11-25"], dtype="datetime64[D]"), array]
    for target in targets:
        assert is_same(way(target, others), target, array, others)
    assert way(targets[0], [array[1:, 1::2]]) is not None
    assert way(targets[0], [array[1:, ::2]]) is None  # its base is not looked into


@pytest.mark.parametrize("put", [lambda a: {"table": a}, lambda a: ("table", a)])
def test_what_holds_nothing_but_arrays_is_no_less_a_holder(put):
    """The collector takes a dict or tuple of arrays for one that holds nothing."""
    target = Held()
    array = numpy.empty((3, 4), dtype=object)
    array[1, 1] = target
    roots = [put(array)]
    gc.collect()
    assert not gc.is_tracked(roots[0])
    assert is_same(way(target, roots), target, array, roots[0], roots)


def test_what_the_collector_has_set_aside_is_passed():
    target = Held()
    holder = [[target]]
    gc.freeze()
    try:
        assert way(target, holder)[-1] is holder
    finally:
        gc.unfreeze()


def test_the_globals_of_a_folder_of_modules_are_the_programs(tmp_path, monkeypatch):
    (tmp_path / "folder_of_modules").mkdir()
    (tmp_path / "folder_of_modules" / "bank.py").write_text("kept = []")
    monkeypatch.syspath_prepend(tmp_path)
    bank = importlib.import_module("folder_of_modules.bank")
    bank.kept.append(Held())
    del bank
    gc.freeze()  # what is met from names is met all the same
    try:
        (chain,) = Search().chains([*sys.modules["folder_of_modules.bank"].kept])
    finally:
        gc.unfreeze()
    assert chain.text == "`kept`, a list, global of folder_of_modules.bank"
    assert isinstance(chain.things[0], Held)


def test_the_search_gives_up_after_so_many_objects():
    target = Held()
    others = [[[] for _ in range(1000)] for _ in range(2)]
    holder = [*others[0], target, *others[1]]
    assert way(target, holder, most=2002)[-1] is holder
    assert way(target, holder, most=1000) is None


def test_many_objects_are_met_once_each():
    things = [[i, []] for i in range(50_000)]
    paths = _C.paths(tuple(things), (things,), (), MOST)
    for thing, path in zip(things, paths, strict=True):
        assert is_same(path, thing, things)


def test_the_collector_rests_meanwhile_and_goes_on_as_it_was():
    for enable in (gc.disable, gc.enable):
        enable()
        way(Held(), [Held()])
        assert gc.isenabled() is (enable is gc.enable)


def test_no_reference_is_kept():
    target = Held()
    holder = Holder(target)
    before = sys.getrefcount(target), sys.getrefcount(holder)
    way(target, [holder])
    assert (sys.getrefcount(target), sys.getrefcount(holder)) == before


def test_other_arguments_are_refused():
    with pytest.raises(TypeError, match="tuple"):
        _C.paths([], (), (), MOST)
