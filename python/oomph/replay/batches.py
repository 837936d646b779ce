"""Which sizes the batch of a step may have, and along which dimension.

It is a vote: of the sizes that tensors of the step have, the most frequent comes first,
but for one that a data loader has. It may be wrong, as a step with half of it then
shows. It costs a look through the step's variables, and one through all objects for
the data loaders.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from oomph.base import collector

if TYPE_CHECKING:
    from oomph.replay.outcome import Outcome
    from oomph.replay.statements import Stretch

CALLS = 4  # of what the statements call: their arguments are looked at, too
THERE = 0.01  # of the peak: what a loop without a model is given, and is no batch
DEPTH = 3  # of lists and dicts that are looked through for tensors


def batches(stretch: Stretch, outcome: Outcome) -> list[tuple[int, int]]:
    """Sizes that the batch may have, and along which dimension, likeliest first.

    First dimensions of what the statements work on: the data loader's, if there is one,
    else what most tensors have; second ones, where time comes first. If nothing is
    there yet, as it was the batch that found no room, of what the step then makes. None
    whose samples look at each other by index, and none that several batches were joined
    to. Whether one is the batch's, a step
    with less of it shows.
    """
    names = stretch.names()
    values = [v for n, v in stretch.frame.f_locals.items() if n in names]
    values += [[*frame.f_locals.values()] for frame in stretch.inner[-CALLS:]]
    times = {*outcome.raw["times"]}
    never = {0, 1} | times | {n for n, count in outcome.raw["gathered"] if n != count}
    never.update(outcome.raw["collected"])
    if not outcome.raw["called"]:  # what was there is whole, whatever a turn takes
        given = names - stretch.bound_first(0)
        held = [v for n, v in stretch.frame.f_locals.items() if n in given]
        least = THERE * outcome.peak_bytes
        large = (t for t in _tensors(held, DEPTH + 1) if t.nbytes >= least)
        never |= {n for tensor in large for n in tensor.shape[:1]}
    there = [_place(tensor, times) for tensor in _tensors(values, DEPTH + 1)]
    for places in (there, [(size, 0) for size in outcome.raw["brought"]]):
        common = [place for place, _ in Counter(places).most_common()]
        likely = [place for place in common if place[0] not in never]
        if likely:
            by_loader = [place for place in likely if place[0] in _loader_sizes()]
            return by_loader or likely[:2]
    return []


def _place(tensor: Any, times: set[int]) -> tuple[int, int]:
    """The size that the batch would have in a tensor, and along which dimension."""
    dim = int(tensor.ndim > 1 and tensor.shape[0] in times)
    return tensor.shape[dim], dim


def _tensors(value: Any, depth: int) -> Iterator[Any]:
    """Those of variables that may be a batch's."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.ndim and not value.requires_grad:
            yield value
    elif depth > 0 and isinstance(value, dict):
        for part in list(value.values()):
            yield from _tensors(part, depth - 1)
    elif depth > 0 and isinstance(value, list | tuple) and len(value) < 64:
        for part in value:
            yield from _tensors(part, depth - 1)
    elif depth > 0 and isinstance(getattr(value, "data", None), dict):
        yield from _tensors(value.data, depth - 1)  # a BatchEncoding


def _loader_sizes() -> set[int]:
    """The sizes of the batches of all data loaders."""
    loader = getattr(sys.modules.get("torch.utils.data"), "DataLoader", None)
    if loader is None:
        return set()
    with collector.all_objects() as objects:
        found = {o.batch_size for o in objects if issubclass(type(o), loader)}
    return {size for size in found if isinstance(size, int)}
