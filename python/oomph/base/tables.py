"""Tables in text: columns as wide as their longest cell, with two spaces between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from oomph.base.sizes import format_size

_BETWEEN = "  "


def columns(rows: Sequence[Sequence[str]], ruled: bool = False) -> list[str]:
    """The lines of a table; none ends in spaces.

    Args:
        rows: The cells of each row, equally many.
        ruled: Whether a line of dashes stands below the first row.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_BETWEEN.join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if ruled:
        lines.insert(1, _BETWEEN.join("-" * width for width in widths))
    return lines


def labelled(rows: Iterable[tuple[str, str]], width_min: int = 0) -> list[str]:
    """Indented lines of a label and a text.

    Args:
        rows: Those.
        width_min: Of the column of labels, in characters.
    """
    rows = list(rows)
    wide = max([width_min, *(len(label) for label, _ in rows)])
    return [f"  {label:{wide}}{_BETWEEN}{text}" for label, text in rows]


def sized(size_bytes: int, text: str, width: int = 10) -> str:
    """An indented line of a size, aligned on the right, and a text.

    Args:
        size_bytes: In bytes.
        text: What has so many, or would save them.
        width: Of the column of sizes, in characters.
    """
    return f"  {format_size(size_bytes):>{width}}{_BETWEEN}{text}"
