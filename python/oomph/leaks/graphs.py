"""Which of autograd's graphs are still alive, and which steps they come from."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from typing import Any

import torch

_NODES_MAX = 4000  # looked at of one graph
_NO_NUMBER = 1 << 62  # leaves of the graph have no number of their own


def now() -> int:
    """The number that the next node of this thread gets."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def nodes(root: Any) -> Iterator[Any]:
    """A graph's nodes, breadth first, up to a limit."""
    level, seen = [root], {root}
    while level and len(seen) < _NODES_MAX:
        outer = []
        for node in level:
            yield node
            for following, _ in node.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    outer.append(following)
        level = outer


def steps_spanned(roots: Iterable[Any], starts: list[int]) -> dict[Any, int]:
    """How many of the steps that began at these numbers each graph has nodes of.

    All that is older than the first of them counts as one more.
    """
    steps: dict[Any, int] = {}  # of all that is reached from a node, a bit each
    return {root: _steps_of(root, starts, steps).bit_count() for root in roots}


def _steps_of(root: Any, starts: list[int], steps: dict[Any, int]) -> int:
    """Adds a graph's nodes to those whose steps are known, the innermost first."""
    stack = [root]
    while stack:
        node = stack[-1]
        number = node._sequence_nr()
        inner = () if number < starts[0] else node.next_functions
        following = [each for each, _ in inner if each is not None]
        if node not in steps:
            is_numbered = number < _NO_NUMBER
            steps[node] = is_numbered << bisect.bisect_right(starts, number)
            stack += [each for each in following if each not in steps]
        else:
            stack.pop()
            for each in following:
                steps[node] |= steps[each]
    return steps[root]


def goes_back(root: Any, starts: list[int]) -> bool:
    """The same of a gradient's graph: whether it has nodes of each of these steps.

    Its own nodes are of another thread, which has numbers of its own.
    """
    found = set()
    for node in nodes(root):
        number = node._sequence_nr()
        if number < _NO_NUMBER:
            found.add(bisect.bisect_right(starts, number))
    return len(found) >= len(starts)


def sources(roots: Iterable[Any]) -> list[Any]:
    """Those of some nodes whose graphs contain none of the others."""
    known = set(roots)
    return [
        root
        for root in known
        if not any(node in known for node in nodes(root) if node is not root)
    ]


def has_copies(root: Any) -> bool:
    """Whether something was copied on the way, as from one device to another."""
    return any("Copy" in type(node).__name__ for node in nodes(root))


def begins_before(root: Any, number: int) -> bool:
    """Whether a graph has nodes that are older than this."""
    return any(node._sequence_nr() < number for node in nodes(root))
