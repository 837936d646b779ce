"""What a step that ran again shows besides its peak, and what would be smaller.

Each figure is the peak had some pieces of the ledger been a share smaller: the pieces
are found by their shape, their phase or who holds them. That costs a pass over all
pieces and events, where to run the step again with each would cost seconds. All else
is taken to stay as it is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from oomph.replay.calls import GROWTH_MIN
from oomph.replay.ledger import Piece
from oomph.replay.tracking import Cached, Tracker

CACHED_MIN = 4  # keys and values of two layers
DEGREE = 2  # edges of a node, from which on a graph's messages are its large tensors
PARTS = (2, 4, 8, 16, 32, 64)  # of a graph
CHUNKS = 8  # that a loss is cut into
WIDE = 4096  # choices from which on logits are large


def cache_of(tracker: Tracker) -> dict[str, Any]:
    """What calls join to, or write into, and keep: keys and values of each layer.

    Returns:
        ``addrs``: of those that were there; ``sizes``: the least and the most bytes;
        ``turn_bytes``: by how much a call lengthens all; ``length``: the tokens.
        Empty: there is none.
    """
    last = _of_last_call(tracker)
    if len(last) < 2:
        return {}
    pieces = [piece for c in tracker.caches for piece in (c.old, c.new)]
    sizes = [piece.size_bytes for piece in pieces]
    return {
        "addrs": [piece.addr for piece in pieces if piece.addr],
        "sizes": [min(sizes), max(sizes)],
        "turn_bytes": sum(c.new.size_bytes - c.old.size_bytes for c in last),
        "length": last[0].length,
    }


def without_cache(tracker: Tracker) -> dict[str, int]:
    """The peak with a cache that is smaller, or whose layers go when longer ones come.

    On the host all is but two layers, of which one comes while the other is used.
    """
    caches, count = tracker.caches, max(1, len(_of_last_call(tracker)))
    known = {id(piece) for c in caches for piece in (c.old, c.new)}
    replaced = [c for c in reversed(caches) if c.old is not c.new]
    gone = {id(c.old): c.new.begin + 1 for c in replaced}  # the first time

    def without(share: Callable[[Piece], float]) -> int:
        return tracker.ledger.peak_without(lambda p: share(p) if id(p) in known else 0)

    return {
        "offloaded": without(lambda _: max(0, 1 - CACHED_MIN / count)),
        "quantized": without(lambda piece: 1 - 4.5 / (8 * piece.dtype.itemsize)),
        "windowed": without(lambda _: 0.5),
        "dropped": tracker.ledger.peak_without(lambda p: id(p) in gone, gone),
    }


def without_earlier_logits(tracker: Tracker, words: set[int]) -> dict[str, Any]:
    """The largest logits of tokens that a cache gets, and the peak with the last alone.

    Args:
        tracker: That counted.
        words: How many the tables of words have.
    """
    pieces = tracker.ledger.pieces if tracker.caches else []
    shapes = [piece.shape for piece in pieces if len(piece.shape) > 2]
    wide = [s for s in shapes if s[-1] in words and s[-1] >= WIDE and s[-2] > 1]
    logits = max(wide, key=math.prod, default=(0, 0))
    count = math.prod(logits)

    def last(piece: Piece) -> float:
        is_like = count and piece.shape[-1:] == logits[-1:]
        return 1 - 1 / logits[-2] if is_like and math.prod(piece.shape) == count else 0

    return {"tokens": logits[-2], "last": tracker.ledger.peak_without(last)}


def shapes_of(tracker: Tracker) -> dict[int, list[tuple[str, tuple[int, ...]]]]:
    """The types and shapes of what it made, by bytes."""
    found: dict[int, dict[tuple[str, tuple[int, ...]], None]] = defaultdict(dict)
    for piece in tracker.ledger.pieces:
        if piece.size_bytes >= GROWTH_MIN:
            found[piece.size_bytes][str(piece.dtype)[6:], piece.shape] = None
    return {size: [*known] for size, known in found.items()}


def _of_last_call(tracker: Tracker) -> list[Cached]:
    return [c for c in tracker.caches if c.call == tracker.caches[-1].call]


def messages_of(tracker: Tracker) -> dict[str, Any]:
    """Messages that nodes send along edges: taken by row, and added up by row again.

    Returns:
        Of the largest graph that was there as the step began, the numbers of ``nodes``
        and ``edges``, and the peak with a part of them, by the number of ``parts``.
        Empty: there is none.
    """
    both = tracker.taken & tracker.added
    pairs = {(n, e) for n, e in both if n in tracker.rows and e >= DEGREE * n}
    if not pairs:
        return {}
    rows = {count for pair in pairs for count in pair}

    def in_parts(count: int) -> int:
        def share(piece: Piece) -> float:
            is_made = piece.phase != "before"
            return 1 - 1 / count if is_made and rows & {*piece.shape[:1]} else 0

        return tracker.ledger.peak_without(share)

    nodes, edges = max(pairs, key=lambda pair: pair[1])
    return {
        "nodes": nodes,
        "edges": edges,
        "parts": [(count, in_parts(count)) for count in PARTS],
    }


def squares_of(tracker: Tracker) -> set[int]:
    """The sizes of square matrices."""
    shapes = (piece.shape for piece in tracker.ledger.pieces)
    return {s[-1] for s in shapes if len(s) == 2 and s[0] == s[1] and s[0] > 1}


def without_logits(tracker: Tracker) -> dict[str, Any]:
    """The largest logits that a loss chooses from, and the peak with a part of them."""
    logits = max(tracker.chosen_from, key=math.prod, default=())
    count = math.prod(logits) if logits and logits[-1] >= WIDE else 0

    def chunked(piece: Piece) -> float:
        is_like = count and piece.addr == 0 and math.prod(piece.shape) == count
        return 1 - 1 / CHUNKS if is_like else 0

    return {
        "logits": list(logits) if count else [],
        "chunked": tracker.ledger.peak_without(chunked),
    }


def without_states(
    tracker: Tracker, optimizers: list[Any], tables: list[torch.Tensor]
) -> dict[str, int]:
    """The peak with optimizers that have less state, or fuse; and without tables.

    What backward and an optimizer make in the shape of a table is the table's.
    """
    states = {id(tracker.ledger.piece_of(tensor)) for tensor in states_of(optimizers)}
    own = {id(tracker.ledger.piece_of(table)) for table in tables}
    shapes = {tuple(table.shape) for table in tables}

    def factored(piece: Piece) -> float:
        if id(piece) not in states or len(piece.shape) < 2:
            return 0
        rows, columns = piece.shape[-2:]
        return 1 - min(1, (rows + columns) / (rows * columns))

    def fused(piece: Piece) -> float:
        return piece.phase == "optimizer" and id(piece) not in states

    def of_tables(piece: Piece) -> float:
        return piece.shape in shapes and piece.phase != "forward"

    def row_wise(piece: Piece) -> float:
        if not of_tables(piece) or id(piece) in own:
            return 0
        return 1 - (id(piece) in states) / (2 * piece.shape[-1])

    def sparse(piece: Piece) -> float:
        return of_tables(piece) and id(piece) not in own | states

    return {
        "8 bits": tracker.ledger.peak_without(
            lambda piece: 0.75 * (id(piece) in states)
        ),
        "factored": tracker.ledger.peak_without(factored),
        "fused": tracker.ledger.peak_without(fused),
        "tables": tracker.ledger.peak_without(of_tables),
        "row-wise": tracker.ledger.peak_without(row_wise),
        "sparse": tracker.ledger.peak_without(sparse),
    }


def states_of(optimizers: list[Any]) -> Iterator[torch.Tensor]:
    """The tensors that optimizers keep."""
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    yield value
