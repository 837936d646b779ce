"""Sizes as people write them: parsed, and printed as PyTorch prints them."""

from __future__ import annotations

import re

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
SMALL_BYTES = 1 << 20  # tensors up to this size stay where they are
_SIZE_MAX = 2**62  # bytes; sizes and their sums are signed 64-bit numbers in C


def _no_size(value: object) -> ValueError:
    return ValueError(
        f"{value!r} is not a size; write a number with KiB, MiB, GiB or TiB, such as "
        "12GiB"
    )


def parse_size(text: str | int, binary: bool = False) -> int:
    """Turns a size into bytes.

    Args:
        text: A number of bytes, or a number with a unit: ``KiB``, ``MiB``, ``GiB``,
            ``TiB`` (powers of 1024) or ``KB``, ``MB``, ``GB``, ``TB`` (powers of 1000),
            in any case, such as ``11.69GiB``.
        binary: Whether ``KB`` and its like mean ``KiB``, as some tools have it.

    Returns:
        The size in bytes, rounded down.

    Raises:
        ValueError: The text is not a size, or is negative or more than any machine has.

    Example:
        >>> parse_size("1.5GiB")
        1610612736
    """
    if isinstance(text, bool) or not isinstance(text, str | int):
        raise _no_size(text)
    if isinstance(text, int):
        size = text
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*", text)
        if match is None or match.group(2).upper() not in _UNITS:
            raise _no_size(text)
        unit = match.group(2).upper()
        if binary and len(unit) == 2:
            unit = f"{unit[0]}IB"
        size = int(float(match.group(1)) * _UNITS[unit])
    if size < 0:
        raise ValueError(f"a size cannot be negative: {text}")
    if size >= _SIZE_MAX:
        raise ValueError(f"{text!r} is more than any machine has")
    return size


def format_size(size_bytes: float) -> str:
    """Prints a size as PyTorch does: two decimals, powers of 1024.

    Example:
        >>> format_size(1610612736)
        '1.50 GiB'
    """
    value = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"
