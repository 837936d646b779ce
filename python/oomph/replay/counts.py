"""How many rows a mask chooses, which no tensor without values tells.

The step that failed may have chosen them already: what it made of them lies in a block
whose size and line are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from oomph.holders.lines import user_line

_aten = torch.ops.aten
_MASKS = (torch.bool, torch.uint8)
ROUND_BYTES = 512  # what every block's size is a multiple of

Place = tuple[str, int]  # a file, and a line of it


@dataclass
class Counts:
    """Answers operators whose results have as many rows as values say.

    Attributes:
        sizes: Of the blocks that the failed step held, by the line that made them.
        few: Whether a mask of which nothing is known chooses one row; else all.
        unknown: Whether there was such a mask.
    """

    sizes: dict[Place, list[int]]
    few: bool = False
    unknown: bool = False
    _shares: dict[Place, float] = field(default_factory=dict)  # of all rows

    def result(self, func: Any, args: Sequence[Any]) -> Any | None:
        """What an operator gives; None: it is none of these."""
        if func is _aten.nonzero.default:
            (mask,) = args
            count = self._count(mask.numel(), 8 * max(1, mask.ndim))
            return mask.new_empty((count, mask.ndim), dtype=torch.int64)
        if func.namespace == "torchvision" and func._opname == "nms":
            boxes = args[0]
            count = self._count(boxes.shape[0], 8)
            return boxes.new_empty(count, dtype=torch.int64)
        if func is _aten.masked_select.default:
            values, mask = args
            shape = torch.broadcast_tensors(values, mask)[0].shape  # type: ignore[no-untyped-call]
            count = self._count(prod(shape), values.element_size())
            return values.new_empty(count)
        if func is _aten.index.Tensor and any(map(_is_mask, args[1])):
            values, indices = args
            return func(values, self._places(values, indices))
        return None

    def _places(self, values: Any, indices: Sequence[Any]) -> list[Any]:
        """The same indices with numbers in the place of masks."""
        masks = [index for index in indices if _is_mask(index)]
        chosen = prod(prod(mask.shape) for mask in masks)
        row_bytes = values.element_size() * max(1, values.numel() // max(1, chosen))
        count = self._count(prod(masks[0].shape), row_bytes)
        places: list[Any] = []
        for index in indices:
            if _is_mask(index):
                row = index.new_empty(count, dtype=torch.int64)
                places += [row] * index.ndim
            else:
                places.append(index)
        return places

    def _count(self, most: int, row_bytes: int) -> int:
        """How many rows of so many bytes the line that runs now chooses.

        Where there are fewer than in the step that failed, the same share of them.
        """
        line = user_line()
        place = (line.file, line.line) if line is not None else ("", 0)
        if place not in self._shares:
            sizes = self.sizes.get(place, ())
            found = [n // row_bytes for n in sizes if n % row_bytes < ROUND_BYTES]
            known = [count for count in found if 0 < count <= most]
            if not known:
                self.unknown = True
                return min(most, 1) if self.few else most
            self._shares[place] = max(known) / most
        return round(self._shares[place] * most)


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in _MASKS
