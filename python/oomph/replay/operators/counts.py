"""How many rows a mask chooses, which no tensor without values shows.

The step that failed may have chosen them already: what it made of them lies in a block
whose size and line are known. Else it is guessed, in several ways (:class:`Guess`),
between which the truth is: as many as there are, or one; and of rows that several masks
share all to one of these, or the same to each. No guess exceeds what is known of a mask
(:mod:`oomph.replay.operators.masks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import torch

from oomph.holders.lines import user_call
from oomph.replay.operators import contents
from oomph.replay.operators.masks import Class, Masks, is_mask

_aten = torch.ops.aten
ROUND_BYTES = 512  # what every block's size is a multiple of

Place = tuple[str, int]  # a file, and a line of it


class Guess(NamedTuple):
    """What masks choose of which nothing is known.

    Attributes:
        few: One row; else all.
        leads: Which of the masks that share rows has them: "first", "last"; "" is none:
            each has the same.
        shares: How many masks share rows, of each family of them as a guess before has
            seen them; 1: only one was seen. Needed unless the first one leads.
    """

    few: bool = False
    leads: str = "first"
    shares: tuple[int, ...] = ()

    def rows(self, number: int, member: int, rows: int) -> int | None:
        """What one of the masks that share rows has of them; None: it shares none.

        Args:
            number: Of the family.
            member: Which one of it.
            rows: That they share.
        """
        count = self.shares[number] if number < len(self.shares) else 1
        if count == 1 and member == 0:
            return None  # none shares with it
        if not self.leads:
            return -(-rows // max(count, member + 1))
        leader = 0 if self.leads == "first" else count - 1
        return max(0, rows - count + 1) if member == leader else 1


ALL = Guess()


@dataclass
class _Family:
    """Masks that share rows: those that choose none which another does."""

    number: int
    members: list[tuple[Class, int]] = field(default_factory=list)


@dataclass
class Counts:
    """Answers operators whose results have as many rows as values say.

    Attributes:
        sizes: Of the blocks that the failed step held, by the line that made them.
        guess: What is taken for true where nothing is known.
        unknown: Whether that was so.
        masks: What is known of them.
    """

    sizes: dict[Place, list[int]]
    guess: Guess = ALL
    unknown: bool = False
    masks: Masks = field(default_factory=Masks)
    _known: dict[Place, float] = field(default_factory=dict)  # shares of all rows
    _families: dict[Any, _Family] = field(default_factory=dict)

    @property
    def shares(self) -> list[int]:
        """How many masks share rows, of each family in the order in which they came."""
        return [len(family.members) for family in self._families.values()]

    def result(self, func: Any, args: Sequence[Any]) -> Any | None:
        """What an operator gives; None: it is none of these."""
        if func is _aten.nonzero.default:
            (mask,) = args
            count = self._count(mask.numel(), 8 * max(1, mask.ndim), mask)
            return mask.new_empty((count, mask.ndim), dtype=torch.int64)
        if func.namespace == "torchvision" and func._opname == "nms":
            boxes = args[0]
            count = self._count(boxes.shape[0], 8)
            return boxes.new_empty(count, dtype=torch.int64)
        if func is _aten.masked_select.default:
            values, mask = args
            shape = torch.broadcast_tensors(values, mask)[0].shape  # type: ignore[no-untyped-call]
            each = prod(shape) // max(1, mask.numel())
            row_bytes = each * values.element_size()
            count = each * self._count(mask.numel(), max(1, row_bytes), mask)
            return values.new_empty(count)
        if func is _aten.index.Tensor and any(map(is_mask, args[1])):
            values, indices = args
            return func(values, self._places(values, indices))
        return None

    def _places(self, values: Any, indices: Sequence[Any]) -> list[Any]:
        """The same indices with numbers in the place of masks."""
        masks = [index for index in indices if is_mask(index)]
        chosen = prod(prod(mask.shape) for mask in masks)
        row_bytes = values.element_size() * max(1, values.numel() // max(1, chosen))
        count = self._count(prod(masks[0].shape), row_bytes, masks[0])
        places: list[Any] = []
        for index in indices:
            if is_mask(index):
                row = index.new_empty(count, dtype=torch.int64)
                places += [row] * index.ndim
            else:
                places.append(index)
        return places

    def _count(
        self, most: int, row_bytes: int, mask: torch.Tensor | None = None
    ) -> int:
        """How many rows of so many bytes the line that runs now chooses.

        Where there are fewer than in the step that failed, the same share of them.
        """
        chosen = contents.count_of(mask)
        if chosen is not None:
            return chosen
        place = self._place()
        if place in self.sizes and place not in self._known:
            found = [
                n // row_bytes for n in self.sizes[place] if n % row_bytes < ROUND_BYTES
            ]
            if known := [count for count in found if 0 < count <= most]:
                self._known[place] = max(known) / most
        if place in self._known:
            return round(self._known[place] * most)
        return self._guessed(most, mask)

    def _place(self) -> Place:
        """The line, if the user's; blocks are known by the user's lines alone."""
        line = user_call()
        return (line.file, line.line) if line is not None else ("", 0)

    def _guessed(self, rows: int, mask: torch.Tensor | None) -> int:
        bound = None if mask is None else self.masks.most(mask)
        if bound is not None and bound < rows:
            return bound  # it was written, to as many places
        self.unknown = True
        classes = () if mask is None else self.masks.classes(mask)
        shared = [self._shared(known) for known in classes]
        found = [count for count in shared if count is not None]
        count = min(rows, 1) if self.guess.few else rows
        if found:
            count = min(rows, *found)
        for known in classes:
            family = self._families[known.family]
            if all(known.excludes(other) for other, _ in family.members):
                family.members.append((known, count))
        return count

    def _shared(self, known: Class) -> int | None:
        """What a mask has of rows that it shares with others; None: with none."""
        new = _Family(len(self._families))
        family = self._families.setdefault(known.family, new)
        same = [count for other, count in family.members if not known.excludes(other)]
        if same:
            return max(same)
        return self.guess.rows(family.number, len(family.members), known.rows)
