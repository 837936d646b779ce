"""What autograd's graphs hold: their nodes, and what these have saved."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

_NODES_MAX = 4000  # looked at of one graph
_SAVED = "_raw_saved_"  # as PyTorch calls what nodes have saved, before it is unpacked


def address_of(tensor: Any) -> int:
    """Where its storage begins; 0: nowhere, or not in one piece."""
    import torch

    is_plain = tensor.layout is torch.strided
    return tensor.untyped_storage().data_ptr() if is_plain else 0


def nodes(roots: Iterable[Any]) -> Iterator[Any]:
    """The nodes of graphs, breadth first, up to a limit."""
    level = [*roots]
    seen = {*level}
    while level and len(seen) < _NODES_MAX:
        outer = []
        for node in level:
            yield node
            for following, _ in node.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    outer.append(following)
        level = outer


def saved(tensors: Iterable[Any]) -> Iterator[Any]:
    """The tensors that graphs have saved, as far as they were not freed.

    Args:
        tensors: Whose graphs these are.
    """
    import torch

    roots = dict.fromkeys(t.grad_fn for t in tensors if t.grad_fn is not None)
    for node in nodes(roots):
        kind: Any = type(node)
        for name in _names(kind):
            try:
                found = getattr(node, name)
                raw = found if isinstance(found, list | tuple) else [found]
                values = [each.data for each in raw if each is not None]
            except RuntimeError:
                continue  # freed
            yield from (value for value in values if isinstance(value, torch.Tensor))


@functools.cache
def _names(kind: Any) -> list[str]:
    return [name for name in dir(kind) if name.startswith(_SAVED)]
