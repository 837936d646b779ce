"""What a look at all objects meets."""

from __future__ import annotations

import gc
import random
import sys
import types
import weakref
from collections.abc import Hashable, Iterator

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


def instances(*kinds: type) -> list[object]:
    return _C.instances(kinds)[0]


def test_instances_of_derived_types_are_met_in_every_generation():
    old = [Wanted(), Derived()]
    gc.collect()
    made = [*old, Derived(), Pretender()]
    assert identities(instances(Wanted)) == identities(made[:3])


def test_each_object_that_the_collector_lists_is_met_once():
    for kinds in ((dict, type), (types.ModuleType,), (types.FunctionType, list)):
        met = identities(instances(*kinds))
        assert len(met) == len(set(met))
        missed = set(listed(*kinds)) ^ set(met)
        assert len(missed) <= 4, kinds  # the lists made meanwhile, and their frames'


def test_modules_that_have_two_names_are_met_once(monkeypatch):
    module = WantedModule("twice")
    for i in range(len(sys.modules) + 100):
        monkeypatch.setitem(sys.modules, f"twice_{i}", module)
    assert instances(Wanted) == [module]


@pytest.mark.usefixtures("thawed")
def test_what_is_frozen_is_left_out_and_what_came_after_is_met():
    frozen = Wanted()
    gc.freeze()
    later = Wanted()
    assert instances(Wanted) == [later]
    del frozen


def test_what_is_no_type_is_refused():
    with pytest.raises(TypeError, match="types"):
        instances(Wanted, 3)


@pytest.mark.long
def test_what_came_since_a_mark_is_met_whatever_was_collected_meanwhile():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    kept: list[object] = [Wanted() for _ in range(100)]
    found, mark = _C.instances((Wanted,))
    known = weakref.WeakSet(found)
    del found
    for _ in range(300):
        for _ in range(chance.randrange(4)):
            thing = Wanted()
            thing.held = [Wanted() for _ in range(chance.randrange(3))]
            kept += [thing, *thing.held]
        if chance.random() < 0.3:
            kept.pop(chance.randrange(len(kept)))
        if chance.random() < 0.5:
            gc.collect(chance.choice((0, 0, 1, 2)))
        if chance.random() < 0.3:
            found, mark = _C.instances((Wanted,), mark)
            known.update(found)
            del found
            assert set(kept) <= set(known)


def test_of_what_was_there_before_a_mark_nothing_is_met_again():
    old = [Wanted() for _ in range(100)]
    _, mark = _C.instances((Wanted,))
    new = Wanted()
    gc.collect(1)
    assert _C.instances((Wanted,), mark)[0] == [new]
    del old


def test_more_than_are_walked_one_by_one_are_met_once():
    _, mark = _C.instances((Wanted,))
    made = [Wanted() for _ in range(1 << 17)]
    found, _ = _C.instances((Wanted,), mark)
    assert identities(found) == identities(made)


@pytest.mark.usefixtures("thawed")
def test_a_mark_that_is_frozen_hides_nothing():
    _, mark = _C.instances((Wanted,))
    gc.freeze()
    later = Wanted()
    assert _C.instances((Wanted,), mark)[0] == [later]


def test_what_is_newer_is_all_that_came_since_and_is_not_kept_alive():
    _, mark = _C.instances((Wanted,))
    made = [Wanted(), {"of": [Wanted()]}]
    newer = _C.newer(mark)
    assert {id(made), id(made[0]), id(made[1]["of"])} <= set(identities(newer))
    known = weakref.ref(made[0])
    del made, newer
    assert known() is None
    gc.collect()
    assert _C.newer(mark) is None


def test_what_is_no_mark_is_refused():
    with pytest.raises(ValueError, match="PyCapsule"):
        _C.instances((Wanted,), 3)
    with pytest.raises(ValueError, match="PyCapsule"):
        _C.newer(3)


@Simulated("1GiB,context=0", "offload:off")
def test_a_tensor_that_moves_to_the_gpu_is_met_though_it_is_an_old_one():
    import torch
    from oomph.leaks.inventory import Inventory

    model, inventory = torch.nn.Linear(4, 4), Inventory()
    inventory.scan(1)
    assert inventory.tensors() == []
    model.cuda()
    assert inventory.scan(2) == [model]
    assert identities(inventory.tensors()) == identities(list(model.parameters()))


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
    found = suspect.finding_now(certain_rounds=500, at_end=False)
    assert found is not None
    assert found.certainty == BOUNDED


@Simulated("1GiB,context=0", "offload:off")
def test_a_kind_has_the_same_number_at_each_look():
    import torch
    from oomph.leaks.inventory import Inventory

    kept: list[torch.Tensor] = []
    numbers: dict[Hashable, int] = {}

    def growing(dims: int) -> Hashable:
        inventory = Inventory(numbers)
        for number in range(4):
            kept.append(torch.zeros([3] * dims, device="cuda"))
            inventory.scan(number)
        (group,) = inventory.growing(all_grows=False)
        return group.kind

    first, second = growing(5), growing(6)
    kept.clear()
    assert (growing(6), growing(5)) == (second, first)


@Simulated("1GiB,context=0", "offload:off")
def test_what_only_a_graph_holds_is_known_to_be_held_by_nothing_in_python():
    import torch
    from oomph.leaks.inventory import Inventory

    kept = torch.ones(4, device="cuda", requires_grad=True)
    graph = kept.exp().exp()  # which saves itself, and what it was computed from
    weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
    product = weight * kept
    inventory = Inventory()
    inventory.scan(1)
    held = {id(kept), id(graph), id(weight), id(product)}
    assert held == set(identities(inventory.tensors()))
    assert inventory.is_held(weight)
    known = weakref.ref(weight)
    del weight
    inventory.scan(2)
    assert not inventory.is_held(known())
    held = {id(kept), id(graph), id(product)}
    assert held == set(identities(inventory.tensors()))
