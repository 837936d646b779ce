"""Predicts the peak of a step that ran out of memory, from what ran of forward.

What runs out in forward is the first piece that finds no room. The rest of forward and
the begin of backward want more, and a remedy that saves the missing piece alone ends
in the same error a moment later. Modules of which a container has several are alike,
so what the first ones saved tells of the others; of the loss, the shape of the logits
does.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from oomph.diagnosis.categories import Breakdown, Category
from oomph.diagnosis.program import Family, Program
from oomph.memory import sites

LOSS_BYTES = 8  # an element of the logits: softmax and its gradient, in 32 bits
MOSTLY = 0.8  # of the bytes in use are of tensors with a row for each token
GRADIENTS = 2  # that an operator has at a time, of what came in and of what went out


@dataclass(frozen=True)
class Saved:
    """What a family of modules keeps for backward.

    Attributes:
        family: The modules.
        size_bytes: When forward is through.
        coming_bytes: Of this, what they have not saved yet.
        input_bytes: Of the size, one tensor for each of them: what checkpointing keeps.
    """

    family: Family
    size_bytes: int
    coming_bytes: int
    input_bytes: int


@dataclass(frozen=True)
class Forecast:
    """What a step comes to, once the optimizer has its state.

    Attributes:
        saved: What each family has saved when forward is through.
        activation_bytes: All that is saved then, without the loss.
        loss_bytes: What the loss and the begin of backward take beside it.
        peak_bytes: All that is in use then.
        missing_bytes: What there is no room for, then.
        step_bytes: All that is in use in the optimizer's step.
        step_missing_bytes: What there is no room for, in the optimizer's step.
    """

    saved: list[Saved]
    activation_bytes: int
    loss_bytes: int
    peak_bytes: int
    missing_bytes: int
    step_bytes: int
    step_missing_bytes: int


@dataclass(frozen=True)
class Logits:
    """What a model says of each token of its input: rows by columns.

    Attributes:
        rows: One for each token.
        columns: As many as there are tokens to choose from.
        element_bytes: Of one element.
        are_made: Something of their size is there, or was asked for: forward is at its
            end.
    """

    rows: int
    columns: int
    element_bytes: int
    are_made: bool

    @property
    def count(self) -> int:
        """Elements."""
        return self.rows * self.columns

    @property
    def loss_bytes(self) -> int:
        """When backward begins: softmax, its gradient, and the logits' own."""
        return self.count * (LOSS_BYTES + self.element_bytes)


def find_logits(
    breakdown: Breakdown, requested_bytes: int, half: bool
) -> Logits | None:
    """The logits of tokens, if the program has such.

    Their rows are those of the input of whole numbers of which most of what is saved
    has a row each. Their columns are what a linear layer gives, if that is as wide as a
    vocabulary; else the tokens of an embedding, if something of that size is there.

    Args:
        breakdown: Who holds the memory.
        requested_bytes: Of the allocation that failed.
        half: Whether products have 16 bits an element.
    """
    program = breakdown.program
    tokens = program.tokens() - {0}
    if not tokens:
        return None
    blocks = [*zip(breakdown.blocks.sizes, breakdown.categories, strict=True)]
    saved = [size for size, kind in blocks if kind == Category.ACTIVATION]
    fitting = {
        rows: sum(size for size in saved if size % (2 * rows) == 0) for rows in tokens
    }
    least = MOSTLY * max(fitting.values())
    rows = max(rows for rows in tokens if fitting[rows] >= least)
    kinds = {Category.ACTIVATION, Category.TEMPORARY, Category.INPUT}
    sizes = {size for size, kind in blocks if kind in kinds} | {requested_bytes}
    known = program.vocabularies | {program.columns()} - {0}
    made = {c for c in known if {rows * c * 2, rows * c * 4} & sizes}
    columns = program.columns() or max(made, default=0)
    if not columns:
        return None
    return Logits(rows, columns, 2 if half else 4, are_made=columns in made)


def saved_by_family(breakdown: Breakdown, logits: Logits | None) -> list[Saved]:
    """What each family has saved for backward; none for those that saved nothing.

    Args:
        breakdown: Who holds the memory.
        logits: What is of their size is the loss's.
    """
    kept = _counts_by_site(breakdown, logits) if breakdown.program.families else {}
    return _saved_by_family(breakdown.program, kept, whole=False)


def predict(
    breakdown: Breakdown,
    logits: Logits | None,
    requested_bytes: int,
    missing_bytes: int,
) -> Forecast | None:
    """What the step comes to whose forward ran out of memory.

    Args:
        breakdown: Who holds the memory.
        logits: Those of tokens, if there are.
        requested_bytes: Of the allocation that failed.
        missing_bytes: Bytes it was short of.

    Returns:
        The forecast; None where too little of forward was seen. It was not at its end,
        and its modules are of no family, or are spread over several containers, or
        forward was not through with the first of them.
    """
    kept = _counts_by_site(breakdown, logits)
    is_through = logits is not None and logits.are_made
    if not is_through and not _tells_the_rest(breakdown.program, kept):
        return None
    saved = _saved_by_family(breakdown.program, kept, whole=not is_through)
    counts: Counter[int] = sum(kept.values(), Counter())
    now = sum(size * count for size, count in counts.items())
    coming = sum(entry.coming_bytes for entry in saved)
    loss = logits.loss_bytes if logits else GRADIENTS * max(counts, default=0)
    asked = requested_bytes, missing_bytes
    return _with_room(breakdown, saved, now + coming, loss, *asked)


def _with_room(
    breakdown: Breakdown,
    saved: list[Saved],
    activation: int,
    loss: int,
    requested_bytes: int,
    missing_bytes: int,
) -> Forecast:
    """Holds what the step comes to against what there is room for."""
    held: Counter[int] = Counter()
    for (_, category), (size, _) in breakdown.groups.items():
        held[category] += size
    room = sum(held.values()) + requested_bytes - missing_bytes
    passing = (Category.ACTIVATION, Category.TEMPORARY)
    lasting = sum(size for category, size in held.items() if category not in passing)
    program = breakdown.program
    coming = program.coming_bytes + program.first_step_bytes
    peak = max(lasting + coming + activation + loss, room + missing_bytes)
    gradients = max(0, program.trained_bytes - held[Category.GRADIENT])
    step = lasting + gradients + coming + program.temporary_bytes
    return Forecast(
        saved=saved,
        activation_bytes=activation,
        loss_bytes=loss,
        peak_bytes=peak,
        missing_bytes=peak - room,
        step_bytes=step,
        step_missing_bytes=max(0, step - room),
    )


def _tells_the_rest(program: Program, kept: dict[int, Counter[int]]) -> bool:
    """Whether what the families have saved so far tells of all of forward.

    Where forward is in none of their modules, it may be before the first as well as
    behind: then each must have saved a block at least.
    """
    for family in program.families:
        saved = sum(map(Counter.total, _rows_of(family, program, kept).values()))
        least = family.count if family.passed is None else 1
        if family.containers > 1 or family.passed == 0 or saved < least:
            return False
    return bool(program.families)


def _counts_by_site(
    breakdown: Breakdown, logits: Logits | None
) -> dict[int, Counter[int]]:
    """How many blocks of each size a line has saved, but for those of logits."""
    held = breakdown.blocks
    large = {logits.count * 2, logits.count * 4} if logits else set()
    blocks = zip(held.sites, held.sizes, breakdown.categories, strict=True)
    found: dict[int, Counter[int]] = {}
    for (site, size, category), count in Counter(blocks).items():
        if category == Category.ACTIVATION and size not in large:
            found.setdefault(site, Counter())[size] = count
    return found


def _saved_by_family(
    program: Program, kept: dict[int, Counter[int]], whole: bool
) -> list[Saved]:
    """Of those that saved anything; if `whole`, when forward is through."""
    rows = {family.name: _rows_of(family, program, kept) for family in program.families}
    return [
        _saved(family, rows[family.name], whole)
        for family in program.families
        if rows[family.name]
    ]


def _rows_of(
    family: Family, program: Program, kept: dict[int, Counter[int]]
) -> dict[int, Counter[int]]:
    """Those of a family's lines; of a library's family, of all lines of no family."""
    inside = {s: row for s, row in kept.items() if _owner(s) in family.classes}
    if inside or family.is_users:
        return inside
    others = frozenset().union(*(f.classes for f in program.families))
    return {site: row for site, row in kept.items() if _owner(site) not in others}


def _saved(family: Family, rows: dict[int, Counter[int]], whole: bool) -> Saved:
    total, so_far, counts = 0.0, 0, dict[int, float]()
    for row in rows.values():
        for size, count in row.items():
            grown = count * _growth(family, count) if whole else count
            total += grown * size
            so_far += count * size
            counts[size] = counts.get(size, 0) + grown
    usual = max(counts, key=lambda size: (counts[size], size))
    inputs = usual * min(family.count, int(counts[usual]))
    return Saved(family, int(total), int(total) - so_far, min(inputs, int(total)))


def _growth(family: Family, count: int) -> float:
    """How many times as many blocks of a line and size there will be.

    A whole number in each module that forward is through with, and either as many or
    fewer in the one that it is in. Blocks that are fewer than these modules are made
    beside them.
    """
    passed = family.passed
    if not passed or count < passed:
        return 1
    each = range(math.ceil(count / (passed + 1)), count // passed + 1)
    usual = sum(each) / len(each) if each else count / (passed + 0.5)
    return usual * family.count / count


def _owner(site: int) -> str:
    """The class whose method a line is in; "" if it is in none."""
    known = sites.resolve(site)
    return known.method[0] if known else ""
