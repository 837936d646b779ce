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


def steps_spanned(root: Any, starts: list[int]) -> int:
    """How many of the steps that began at these numbers a graph has nodes of.

    All that is older than the first of them counts as one more.
    """
    if not starts:
        return 0
    found = set()
    for node in nodes(root):
        number = node._sequence_nr()
        if number < _NO_NUMBER:
            found.add(bisect.bisect_right(starts, number))
    return len(found)


def sources(roots: Iterable[Any]) -> list[Any]:
    """Those of some nodes whose graphs contain none of the others."""
    known = set(roots)
    return [
        root
        for root in known
        if not any(node in known for node in nodes(root) if node is not root)
    ]


def begins_before(root: Any, number: int) -> bool:
    """Whether a graph has nodes that are older than this."""
    return any(node._sequence_nr() < number for node in nodes(root))
