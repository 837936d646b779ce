"""The batches that an epoch has still to come, by the sizes of their tensors.

Where batches differ, the first steps do not show the peak: lengths that are sorted, or
a long text among many short ones. What a batch needs grows with the sizes of its
tensors, and to know these takes no step. So a fork reads the batches whose indices the
sampler has still to give. Those of which some size is larger than that of each before
them are given first; one that is no larger in any size than one that ran needs no more.

The fork shares nothing with the script but files: the script's random numbers and
dataset stay as they are.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import dataloader

Sizes = Mapping[str, int]
_BATCHES_MAX = 100_000  # whose indices are read
_FEW = 2  # that are looked at where all so far were alike
_LEAST, _MOST = 8, 200  # batches to be given first
_FULL = 1 << 16  # bytes read at a time
_exit = os._exit  # the program's watch has its own


@dataclass(frozen=True)
class Plan:
    """What is to come of an epoch.

    Attributes:
        first: Indices of the batches to be given first, as the sampler gave them.
        left: How many batches were still to come.
        looked_at: Of how many the sizes are known.
        left_out: How many of the larger ones are not among the first.
        more: Indices of the first and of these, as far as they are not too many; empty:
            none are left out.
    """

    first: Sequence[Any] = ()
    left: int = 0
    looked_at: int = 0
    left_out: int = 0
    more: Sequence[Any] = ()


def note(batch: Any, seen: list[Sizes]) -> None:
    """A batch was given; adds its sizes to those seen, where they are new."""
    found = sizes(batch)
    if found not in seen:
        seen.append(found)


def look(
    iterator: Any, seen: Sequence[Sizes], seconds: float, step_s: float, steps_s: float
) -> Plan:
    """Looks at what an iterator of a data loader has still to give.

    Args:
        iterator: It.
        seen: Sizes of what it has given.
        seconds: To look for.
        step_s: What a step takes.
        steps_s: To run larger batches for.
    """
    if iterator._dataset_kind != dataloader._DatasetKind.Map or not seen:
        return Plan()
    end = time.monotonic() + seconds
    rest = iterator._sampler_iter
    to_come = list(_until(end, islice(rest, _BATCHES_MAX)))
    iterator._sampler_iter = chain(to_come, rest)
    order = _spread(len(to_come))
    few = order[:_FEW] if len(seen) == 1 else []
    if few and not records(_read(iterator, to_come, few, end), seen):
        order = few
    found = _read(iterator, to_come, order, end)
    larger = records(dict(sorted(found.items())), seen)
    chosen = thinned(larger, min(max(_LEAST, int(steps_s / max(step_s, 1e-3))), _MOST))
    first, more = (
        [to_come[place] for place in places]
        for places in (chosen, thinned(larger, _MOST))
    )
    if "" in map(_text, more):
        first = more = []
    left_out = len(larger) - len(first)
    return Plan(first, len(to_come), len(found), left_out, more if left_out else ())


def give_first(iterator: Any, first: Sequence[Any]) -> int:
    """Has batches of these indices come next, and then the others.

    Returns:
        How many the iterator has given once it has given all of these.
    """
    asked = {*map(_text, first)}
    later = iterator._sampler_iter
    others = (each for each in later if _text(each) not in asked)
    iterator._sampler_iter = chain(first, others)
    sent = getattr(iterator, "_send_idx", iterator._num_yielded)  # workers are ahead
    return int(sent) + len(first)


def _text(indices: Any) -> str:
    """Indices as other runs are told them; "": they cannot be."""
    try:
        return json.dumps(indices)
    except (TypeError, ValueError):
        return ""


# ---- Sizes


def sizes(batch: Any) -> dict[str, int]:
    """The sizes of all tensors in a batch, by where they are and which size it is.

    Of tensors in a list within it the largest counts, and what they have together.

    Example:
        >>> sizes({"x": torch.zeros(2, 3)})
        {'x/0': 2, 'x/1': 3, 'x/all': 6}
    """
    found: dict[str, int] = {}
    for where, tensor in _tensors(batch, ""):
        for dimension, size in enumerate(tensor.shape):
            name = f"{where}/{dimension}"
            found[name] = max(found.get(name, 0), size)
        name = f"{where}/all"
        found[name] = found.get(name, 0) + tensor.numel()
    return found


def _tensors(value: Any, where: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield where, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _tensors(each, f"{where}.{key}" if where else str(key))
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            place = f"{where}[]" if where else str(number)
            yield from _tensors(each, place)


def is_within(one: Sizes, other: Sizes) -> bool:
    """Whether no size of one batch is larger than that of another."""
    return all(size <= other.get(name, 0) for name, size in one.items())


def records(found: Mapping[int, Sizes], seen: Sequence[Sizes]) -> dict[int, Sizes]:
    """Those of which some size is larger than that of each before, in their order.

    Example:
        >>> [*records({0: {"x": 5}, 1: {"x": 3}, 2: {"x": 8}}, [{"x": 4}])]
        [0, 2]
    """
    kept: dict[int, Sizes] = {}
    for place, each in found.items():
        if not any(is_within(each, other) for other in (*seen, *kept.values())):
            kept[place] = each
    return kept


def thinned(larger: Mapping[int, Sizes], most: int) -> list[int]:
    """So many of them at most: the largest, and of the others some, evenly spread.

    Those between count as well: PyTorch's allocator keeps blocks of each size.
    """
    if len(larger) <= most:
        return list(larger)
    names = dict.fromkeys(chain.from_iterable(larger.values()))
    by_size = [
        max((of.get(name, 0), -place) for place, of in larger.items()) for name in names
    ]
    by_weight = sorted(larger, key=lambda place: -_weight(larger[place]))
    chosen = dict.fromkeys([*by_weight[:1], *(-place for _, place in by_size)])
    largest = list(chosen)[:most]
    others = [place for place in larger if place not in largest]
    count = most - len(largest)
    spread = [others[(2 * i + 1) * len(others) // (2 * count)] for i in range(count)]
    return sorted({*largest, *spread})


def _weight(of: Sizes) -> int:
    """Grows with all sizes, and with the longest most, as attention does."""
    return sum(of.values()) * max(of.values(), default=0)


# ---- Reading


def _until(end: float, values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        yield value
        if time.monotonic() > end:
            return


def _spread(count: int) -> list[int]:
    """Places from the last but one and the middle to ever finer parts.

    The last batch of an epoch is often not a whole one, so it is the third.
    """
    found = dict.fromkeys(p for p in (count - 2, count // 2, count - 1) if p >= 0)
    step = count
    while step > 1:
        step = (step + 1) // 2
        found |= dict.fromkeys(range(0, count, step))
    found |= dict.fromkeys(range(count))
    return list(found)


def _read(
    iterator: Any, to_come: Sequence[Any], order: Sequence[int], end: float
) -> dict[int, Sizes]:
    """The sizes of batches that a fork reads, as many as there is time for.

    Args:
        iterator: Whose batches they are.
        to_come: Their indices.
        order: In which they are read.
        end: When the time is up.
    """
    source, sink = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's, about threads
        child = os.fork()
    if child == 0:
        try:
            _tell(iterator, to_come, order, sink)
        finally:
            _exit(0)
    os.close(sink)
    text = b""
    try:
        while select.select([source], [], [], max(0, end - time.monotonic()))[0]:
            more = os.read(source, _FULL)
            text += more
            if not more:
                break
    finally:
        os.close(source)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    lines = text.split(b"\n")[:-1]
    return dict(map(json.loads, lines))


def _tell(iterator: Any, to_come: Sequence[Any], order: Sequence[int], to: int) -> None:
    """In the fork: reads batches, and writes their sizes."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    torch.set_num_threads(1)
    fetcher = dataloader._DatasetKind.create_fetcher(  # type: ignore[no-untyped-call]
        iterator._dataset_kind,
        iterator._dataset,
        iterator._auto_collation,
        iterator._collate_fn,
        iterator._drop_last,
    )
    for place in order:
        found = sizes(fetcher.fetch(to_come[place]))
        os.write(to, json.dumps([place, found]).encode() + b"\n")
