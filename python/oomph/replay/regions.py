"""Large tensors that come of small ones and become small again, row by row.

Distances of all to all, scores of attention, losses of all triplets: an operator makes
a tensor several times as large as what it is given, operators on single elements make
more of the same rows, and sums, choices or products leave little of each row. Such can
be computed a few rows at a time. It shows in the operators that run, and in how what
they are given lies in memory: rows are what comes first there. Whatever is not known
to keep rows apart ends it. It costs a look at each operator's tensors.
"""

from __future__ import annotations

import functools
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from oomph.memory.sites import is_user
from oomph.replay.ledger import Ledger, Piece

MIN_BYTES = 1 << 20  # that a region's tensor has
EXPANDS = 4  # times what it is given an operator makes, and a result is smaller
PARTS = (2, 4, 8, 16, 32, 64)
MOST = 3  # lines that are told
HEAD_MAX = 256  # width of a head that fused attention takes
_SMALL = 16  # times as much as a mask takes what it is for

_POINTWISE = frozenset(
    [
        *("masked_fill", "copy", "_to_copy", "fill", "zero", "bernoulli"),
        *("native_dropout", "log_sigmoid_forward", "empty_like", "zeros_like"),
        *("ones_like", "full_like", "rand_like", "randn_like", "alias"),
    ]
)
_SUMS = frozenset(
    ["sum", "mean", "amax", "amin", "max", "min", "any", "all", "nansum", "logsumexp"]
)
_OF_ROWS = frozenset(
    [
        *("topk", "sort", "argmax", "argmin", "linalg_vector_norm", "norm", "var"),
        *("std", "kthvalue", "_softmax", "_log_softmax", "gather", "prod", "cumsum"),
    ]
)
_PRODUCTS = frozenset(["mm", "addmm", "bmm", "baddbmm"])
_BEFORE_SOFTMAX = frozenset(
    ["mul", "div", "add", "sub", "masked_fill", "where", "_to_copy", "clone", "copy"]
)
_AFTER_SOFTMAX = frozenset(
    ["native_dropout", "_to_copy", "clone", "copy", "mul", "empty_like", "bernoulli"]
)


@dataclass
class Region:
    """Tensors of the same rows.

    Attributes:
        rows: How many there are.
        place: File and line of the user's that made the first.
        pieces: All of them, the first first.
        left_bytes: The most that one operator left of it.
        is_apart: Whether rows were kept apart, so far.
        stage: Of attention: after its "product", "softmax" or "values"; "": it is
            none.
        mask_bytes: Of masks of attention, if each sample has its own.
    """

    rows: int
    place: tuple[str, int]
    pieces: list[Piece] = field(default_factory=list)
    left_bytes: int = 0
    is_apart: bool = True
    stage: str = ""
    width: int = 0  # of a head
    mask_bytes: int = 0


class Regions:
    """Those that forward makes.

    Args:
        ledger: Of all storages.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._of: dict[int, Region] = {}  # by identity of the piece
        self.all: list[Region] = []
        self.parameters: set[int] = set()  # identities of their pieces

    def note(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        given: list[torch.Tensor],
        made: list[torch.Tensor],
    ) -> None:
        """An operator ran."""
        known = _without_small(
            [(t, self._of.get(id(self._ledger.piece_of(t)))) for t in given]
        )
        touched = [(t, region) for t, region in known if region is not None]
        if not touched:
            if made and made[0].nbytes >= MIN_BYTES:
                self._begin(func, given, made)
            return
        name, is_pointwise = _named(func)
        new = self._new_pieces(given, made)
        if not new and not func._schema.is_mutable:
            return  # a view
        tensors, region = [t for t, _ in touched], touched[0][1]
        for _, other in touched[1:]:
            self._join(region, other)
        most = max(t.nbytes for t in tensors)
        stays = name in _OF_ROWS and not _is_along_rows(func, args, kwargs)
        ends = name in _SUMS or _multiplies_rows(name, args, tensors[0], made, most)
        is_apart = stays or ends or (is_pointwise and _is_aligned(made, tensors))
        region.is_apart &= is_apart and all(map(_is_rows_first, tensors))
        self._note_stage(region, name, known)
        for tensor, piece in new:
            if is_pointwise or (stays and tensor.nbytes * EXPANDS > most):
                self._take(region, piece)
            else:
                region.left_bytes = max(region.left_bytes, tensor.nbytes)

    def _begin(
        self, func: Any, given: list[torch.Tensor], made: list[torch.Tensor]
    ) -> None:
        new = self._new_pieces(given, made)
        if len(new) != 1 or not given or not _is_rows_first(made[0]):
            return
        pieces = [self._ledger.piece_of(t) for t in given]
        if any(id(piece) in self.parameters for piece in pieces):
            return
        own = sum(_own_bytes(tensor) for tensor in given)
        tensor, piece = new[0]
        name, is_pointwise = _named(func)
        is_product = name in _PRODUCTS or name == "_cdist_forward"
        if not (is_product or is_pointwise) or tensor.nbytes < EXPANDS * own:
            return
        region = Region(tensor.shape[_first_dim(tensor) or 0], _place())
        if name in ("bmm", "baddbmm"):
            region.stage, region.width = "product", given[-1].shape[-2]
        self.all.append(region)
        self._take(region, piece)

    def _new_pieces(
        self, given: list[torch.Tensor], made: list[torch.Tensor]
    ) -> list[tuple[torch.Tensor, Piece]]:
        before = {id(self._ledger.piece_of(tensor)) for tensor in given}
        pairs = ((tensor, self._ledger.piece_of(tensor)) for tensor in made)
        return [(t, p) for t, p in pairs if p is not None and id(p) not in before]

    def _take(self, region: Region, piece: Piece) -> None:
        self._of[id(piece)] = region
        region.pieces.append(piece)

    def _join(self, region: Region, other: Region) -> None:
        """Takes another's, of as many rows, to a region."""
        if region is other:
            return
        region.is_apart &= other.is_apart and region.rows == other.rows
        region.stage = ""
        for piece in other.pieces:
            self._take(region, piece)
        other.pieces = []

    def _note_stage(
        self,
        region: Region,
        name: str,
        known: list[tuple[torch.Tensor, Region | None]],
    ) -> None:
        """Follows attention: scores, softmax, and the product with values."""
        others = [t for t, other in known if other is None]
        learns = any(t.requires_grad and t.numel() > 1 for t in others)
        if region.stage == "product" and name in _BEFORE_SOFTMAX:
            first = region.pieces[0]
            most = max((t.numel() for t in others), default=0)
            if most > math.prod(first.shape[-2:]):
                region.mask_bytes = most * first.dtype.itemsize
        after = {"product": _BEFORE_SOFTMAX, "softmax": _AFTER_SOFTMAX}
        if region.stage == "product" and name == "_softmax":
            region.stage = "softmax"
        elif region.stage == "softmax" and name == "bmm" and known[0][1] is region:
            region.stage = "values"
        elif learns or name not in after.get(region.stage, ()):
            region.stage = ""

    # ---- What it comes to

    def told(self, kept: set[int]) -> list[dict[str, Any]]:
        """Of each line what computing its rows in parts, or fused, would leave.

        Args:
            kept: Identities of the pieces that are wanted afterwards.

        Returns:
            Those that have most, with ``place``, ``rows``, ``dtype`` and ``shape`` of
            the largest, ``parts``: the peak by the number of parts, and ``fused``: the
            peak with fused attention; 0: it is none.
        """
        by_place: dict[tuple[str, int], list[Region]] = defaultdict(list)
        for region in self.all:
            if region.pieces:
                by_place[region.place].append(region)
        most = sorted(by_place.items(), key=lambda item: -_bytes_of(item[1]))
        found = []
        for place, each in most[:MOST]:
            least = max(_bytes_of([r]) for r in each) / _SMALL
            regions = [r for r in each if _bytes_of([r]) >= least]
            if all(r.is_apart and not {*map(id, r.pieces)} & kept for r in regions):
                found.append(self._told(place, regions))
        return found

    def _told(self, place: tuple[str, int], regions: list[Region]) -> dict[str, Any]:
        pieces = {id(p): p for r in regions for p in r.pieces}
        left = max(r.left_bytes for r in regions)
        largest = max(pieces.values(), key=lambda piece: piece.size_bytes)
        least = largest.size_bytes / EXPANDS
        shapes = {p.shape for p in pieces.values() if p.size_bytes >= least}

        def is_of(piece: Piece) -> bool:
            goes_back = piece.phase == "backward" and piece.shape in shapes
            return id(piece) in pieces or goes_back

        def in_parts(count: int) -> int:
            share = 1 - 1 / count
            return left + self._ledger.peak_without(lambda p: share * is_of(p))

        def fused(piece: Piece) -> float:
            """Forward keeps a number a row, backward works on gradients of inputs."""
            if not is_of(piece):
                return 0
            columns = piece.shape[-1] if piece.shape else 1
            numbers = 2 * width if piece.phase == "backward" else 1
            left = numbers * 4 / (piece.dtype.itemsize * columns)
            return max(0, 1 - left - masks.get(id(piece), 0))

        width = max(r.width for r in regions)
        rows = max(r.rows for r in regions)
        is_attention = all(r.stage == "values" for r in regions) and width <= HEAD_MAX
        # Each call converts its masks, and saves them as long as the weights were.
        last = ((r.pieces[-1], r.mask_bytes) for r in regions)
        masks = {id(piece): size / piece.size_bytes for piece, size in last}
        return {
            "place": list(place),
            "rows": rows,
            "dtype": str(largest.dtype)[6:],
            "shape": list(largest.shape),
            "parts": [(count, in_parts(count)) for count in PARTS if count <= rows],
            "fused": self._ledger.peak_without(fused) if is_attention else 0,
        }


def _without_small(
    known: list[tuple[torch.Tensor, Region | None]],
) -> list[tuple[torch.Tensor, Region | None]]:
    """What is given, and of which region: of none, if it is a mask for another."""
    most = max((t.nbytes for t, region in known if region is not None), default=0)
    return [(t, r if t.nbytes * EXPANDS >= most else None) for t, r in known]


def _bytes_of(regions: Iterable[Region]) -> int:
    return sum(piece.size_bytes for region in regions for piece in region.pieces)


@functools.cache
def _named(func: Any) -> tuple[str, bool]:
    """An operator's name, and whether it works on each element by itself."""
    name = func._schema.name.partition("::")[2]
    name = name.rstrip("_") if func._schema.is_mutable else name
    return name, name in _POINTWISE or torch.Tag.pointwise in func.tags


def _first_dim(tensor: torch.Tensor) -> int | None:
    """The dimension that lies outermost; None: it has no elements to lie anywhere."""
    return next((i for i, n in enumerate(tensor.shape) if n > 1), None)


def _is_rows_first(tensor: torch.Tensor) -> bool:
    """Whether what comes first in the shape is outermost in memory, too."""
    first = _first_dim(tensor)
    if first is None or tensor.layout is not torch.strided:
        return False
    strides = [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1]
    return strides[0] == max(strides) > 0


def _is_aligned(made: list[torch.Tensor], given: list[torch.Tensor]) -> bool:
    """Whether the rows of what is given are rows of the result, counted from behind."""
    if not made or (first := _first_dim(made[0])) is None:
        return False
    rows, behind = made[0].shape[first], made[0].ndim - first
    places = ((t, _first_dim(t)) for t in given)
    return _is_rows_first(made[0]) and all(
        own is not None and t.ndim - own == behind and t.shape[own] == rows
        for t, own in places
    )


def _is_along_rows(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operator works along the rows of its first argument, or on all."""
    tensor = args[0]
    for i, argument in enumerate(func._schema.arguments):
        if argument.name == "dim":
            given = args[i] if i < len(args) else argument.default_value
            dim = kwargs.get("dim", given)
            dims = [dim] if isinstance(dim, int) else dim
            first = _first_dim(tensor)
            return not dims or any(d % tensor.ndim == first for d in dims)
    return True


def _multiplies_rows(
    name: str, args: Any, tensor: torch.Tensor, made: list[torch.Tensor], most: int
) -> bool:
    """Whether each row of a product is of one row, and there is less of it."""
    if name not in _PRODUCTS or sum(t.nbytes for t in made) > most:
        return False
    left = args[1] if name == "addmm" else args[0]
    return name in ("bmm", "baddbmm") or left is tensor


def _own_bytes(tensor: torch.Tensor) -> int:
    """Of the elements that are different in memory."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.itemsize * math.prod(n for n, stride in pairs if stride)


def _place() -> tuple[str, int]:
    """The user's line that runs."""
    for frame in _frames():
        if is_user(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
    return "", 0


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
