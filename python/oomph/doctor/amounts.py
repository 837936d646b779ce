"""Sizes as a text gives them: rounded, so each is known up to its rounding."""

from __future__ import annotations

from dataclasses import dataclass

from oomph.base.sizes import format_size

MIB = 1 << 20
GIB = 1 << 30
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_NONE_BYTES = 1 << 63  # NVML and PyTorch print -1 or no limit as 17179869184.00 GiB
PATTERN = r"(\d{1,20}(?:\.\d{1,6})?)([Bb]ytes|[KMGTPE]?i?B)"  # without white space


@dataclass(frozen=True)
class Amount:
    """A number of bytes between two bounds, both of which it may be.

    Attributes:
        low_bytes: At least as many; below 0 for a difference.
        high_bytes: At most as many.

    Example:
        >>> str(Amount.read("24.00", "GiB") - Amount.read("20.12", "GiB"))
        '3.88 GiB'
    """

    low_bytes: int
    high_bytes: int

    @classmethod
    def exactly(cls, size_bytes: int) -> Amount:
        """An amount that is known to the byte."""
        return cls(size_bytes, size_bytes)

    @classmethod
    def read(cls, number: str, unit: str) -> Amount | None:
        """What a number with a unit stands for: all that rounds to it.

        Args:
            number: Such as ``2.34``.
            unit: ``bytes``, ``B``, ``KiB`` and its like; ``KB`` and its like mean the
                same in each text that is read here; "" means bytes.

        Returns:
            None if it says that the size is not known, as ``17179869184.00 GiB`` does.
        """
        whole, _, decimals = number.partition(".")
        known = _POWERS.get(unit[:1].upper(), 0) if unit.lower() != "bytes" else 0
        factor = 1024**known
        scale = 10 ** len(decimals)
        digits = int(whole + decimals)
        if digits * factor >= _NONE_BYTES * scale:
            return None
        if factor == 1:
            return cls.exactly(digits // scale)
        # Half a unit in the last place either way; integers, as 2**53 is not enough.
        low = -((-(2 * digits - 1) * factor) // (2 * scale))
        return cls(max(0, low), (2 * digits + 1) * factor // (2 * scale))

    @property
    def middle_bytes(self) -> int:
        """What the text says, to the byte."""
        return (self.low_bytes + self.high_bytes) // 2

    @property
    def is_exact(self) -> bool:
        """Whether it is known to the byte."""
        return self.low_bytes == self.high_bytes

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.low_bytes + other.low_bytes, self.high_bytes + other.high_bytes
        )

    def __sub__(self, other: Amount) -> Amount:
        return Amount(
            self.low_bytes - other.high_bytes, self.high_bytes - other.low_bytes
        )

    def surely_above(self, other: Amount) -> bool:
        """Whether it is more, however the text was rounded."""
        return self.low_bytes > other.high_bytes

    def __str__(self) -> str:
        middle = self.middle_bytes
        sign, size = ("-", -middle) if middle < 0 else ("", middle)
        if self.high_bytes - self.low_bytes > MIB and size >= GIB // 100:
            return f"{sign}{size / GIB:.2f} GiB"  # MiB would be more than is known
        return f"{sign}{format_size(size)}"

    def as_dict(self) -> dict[str, int | str]:
        """As data: the text, the bytes it stands for, and the bounds."""
        return {
            "text": str(self),
            "bytes": self.middle_bytes,
            "at_least_bytes": self.low_bytes,
            "at_most_bytes": self.high_bytes,
        }


ZERO = Amount.exactly(0)


def smaller(one: Amount, other: Amount) -> Amount:
    """The smaller of two, as what is known of both allows."""
    return Amount(
        min(one.low_bytes, other.low_bytes), min(one.high_bytes, other.high_bytes)
    )
