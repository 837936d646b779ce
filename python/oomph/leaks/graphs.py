"""Which of autograd's graphs are still alive, and which steps they come from."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from typing import Any

import torch

from oomph import _torch
from oomph.holders.saved import nodes

_NO_NUMBER = 1 << 62  # leaves of the graph have no number of their own
_FUNCTION: Any = torch._C._FunctionBase


def _number(node: Any) -> int | None:
    """That of a node of this thread; None: another numbers it, or nobody does."""
    if not isinstance(node, _FUNCTION) and not _torch.made_here(node):
        return None
    number = int(node._sequence_nr())
    return number if number < _NO_NUMBER else None


def steps_spanned(roots: Iterable[Any], starts: list[int]) -> dict[Any, int]:
    """How many of the steps that began at these numbers each graph has nodes of.

    All that is older than the first of them counts as one more.
    """

    def step(_node: Any, number: int | None) -> int:
        return 0 if number is None else 1 << bisect.bisect_right(starts, number)

    known: dict[Any, int] = {}
    return {root: _bits(root, starts[0], step, known).bit_count() for root in roots}


def _bits(
    root: Any,
    oldest: int,
    own: Callable[[Any, int | None], int],
    known: dict[Any, int],
) -> int:
    """The bits of all that is reached from a node, but not through what is too old.

    Args:
        root: The node.
        oldest: Number from which on a node is not too old.
        own: Gives the bits of a node itself, and of its number.
        known: What was found so far, by node; graphs share much.
    """
    stack: list[tuple[Any, list[Any] | None]] = [(root, None)]
    while stack:
        node, following = stack.pop()
        if following is not None:
            for each in following:
                known[node] |= known[each]
        elif node not in known:
            number = _number(node)
            is_old = number is not None and number < oldest
            inner = () if is_old else node.next_functions
            following = [each for each, _ in inner if each is not None]
            known[node] = own(node, number)
            stack.append((node, following))
            stack += [(each, None) for each in following if each not in known]
    return known[root]


def goes_back(root: Any, starts: list[int]) -> bool:
    """The same of a gradient's graph: whether it has nodes of each of these steps."""
    numbers = filter(None, map(_number, nodes([root])))
    found = {bisect.bisect_right(starts, number) for number in numbers}
    return len(found) >= len(starts)


def sources(roots: Iterable[Any], oldest: int) -> list[Any]:
    """Those of some nodes whose graphs contain none of the others.

    Args:
        roots: The nodes.
        oldest: Number from which on a node is not too old to be looked at.
    """
    bits = {root: 1 << place for place, root in enumerate(roots)}
    known: dict[Any, int] = {}
    return [
        root
        for root, bit in bits.items()
        if _bits(root, oldest, lambda node, _: bits.get(node, 0), known) == bit
    ]


def has_copies(root: Any) -> bool:
    """Whether something was copied on the way, as from one device to another."""
    return any("Copy" in type(node).__name__ for node in nodes([root]))


def begins_before(root: Any, number: int) -> bool:
    """Whether a graph has nodes that are older than this."""
    return any((_number(node) or number) < number for node in nodes([root]))
