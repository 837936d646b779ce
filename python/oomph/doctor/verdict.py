"""What follows from an error's numbers: pure arithmetic on rounded amounts.

Of PyTorch's own allocator it is known that it has given all blocks that are free as a
whole back to the driver before it raises: what is still cached are parts of blocks, of
which other parts are in use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from oomph.doctor.amounts import MIB, ZERO, Amount, smaller
from oomph.doctor.found import Found

_SMALL_BYTES, _LARGE_BYTES = 2 * MIB, 20 * MIB  # what small requests are rounded to
_CONTEXT_BYTES = 1 << 30  # CUDA's own and that of libraries is hardly ever more
_DTYPES = {1: "8-bit", 2: "16-bit", 4: "32-bit", 8: "64-bit"}


@dataclass(frozen=True)
class Account:
    """Who has the memory, and what is missing; None: it does not follow from the text.

    Attributes:
        requested: What was asked for.
        total: Memory of the device.
        free: Free, as the driver says.
        allocated: In tensors (and in free blocks of private pools).
        reserved: What PyTorch has from the driver.
        cached: Reserved, but in no tensor.
        allowed: What the process may take at most.
        room: What can still be taken: what is free, or less where a limit is lower.
        missing: What the request exceeds that by, or what oomph says; 0: it does not.
        missing_defragmented: The same, if all that is cached were in one piece.
        outside: On the device, but not PyTorch's of this process; of cudaMallocAsync,
            what its pool caches is in it.
        own_outside: Of it, this process's own: CUDA's context and libraries.
        others: Of it, other processes' by id.
        unlisted: Of it, what is in no process that the text names.
        likely_self: Id of the process that must be this one, seen from outside.
        limit_decides: A limit is what refuses the request, not the device.
        overcommitted: More is reserved than there is: host memory is in it.
    """

    requested: Amount | None = None
    total: Amount | None = None
    free: Amount | None = None
    allocated: Amount | None = None
    reserved: Amount | None = None
    cached: Amount | None = None
    allowed: Amount | None = None
    room: Amount | None = None
    missing: Amount | None = None
    missing_defragmented: Amount | None = None
    outside: Amount | None = None
    own_outside: Amount | None = None
    others: tuple[tuple[int, Amount], ...] = ()
    unlisted: Amount | None = None
    likely_self: int | None = None
    limit_decides: bool = False
    overcommitted: bool = False

    @property
    def others_total(self) -> Amount | None:
        """What other processes have together; None: none is named."""
        total = ZERO
        for _, amount in self.others:
            total += amount
        return total if self.others else None

    @property
    def fragmentation_possible(self) -> bool | None:
        """Whether the request would fit if all that is cached were in one piece."""
        if self.missing_defragmented is None:
            return None
        return not self.missing_defragmented.surely_above(ZERO)

    @property
    def outside_is_much(self) -> bool:
        """Whether more is outside than CUDA and libraries are likely to take."""
        of_others = self.outside
        if self.own_outside is not None:
            of_others = self.others_total or self.unlisted
        return of_others is not None and of_others.middle_bytes > _CONTEXT_BYTES


def account(found: Found) -> Account:
    """Does the sums of an error.

    Example:
        >>> from oomph.doctor.lines import Squeezed, split
        >>> from oomph.doctor.parse import find
        >>> text = ("CUDA out of memory. Tried to allocate 2.34 GiB (GPU 0; 24.00 GiB "
        ...     "total capacity; 18.21 GiB already allocated; 0 bytes free; 20.12 GiB "
        ...     "reserved in total by PyTorch)")
        >>> (error,) = find(Squeezed.of(split(text, 1)), 0, 1)
        >>> str(account(error).missing_defragmented)
        '0.43 GiB'
    """
    requested, total = found.amount("requested"), found.amount("total")
    free, allocated = found.amount("free"), found.amount("allocated")
    reserved, cached = found.amount("reserved"), found.amount("unallocated")
    if found.form == "pytorch" and allocated is not None:
        if reserved is not None:
            cached = _not_negative(reserved - allocated)
        elif cached is not None:
            reserved = allocated + cached
    allowed = found.amount("allowed")
    held = reserved or allocated
    if held is not None:
        held += found.amount("other") or ZERO
    room, limited = _room(free, allowed, held)
    missing = requested - room if requested and room else None
    missing = found.amount("missing") or _not_negative(missing)
    on_device = {"pytorch": reserved, "async": allocated}.get(found.form)
    if on_device is not None and found.amount("host") is not None:
        on_device = on_device - (found.amount("host") or ZERO)
    likely_self = _likely_self(found, on_device)
    this = found.amount("this_process")
    if likely_self is not None:
        this = found.processes[likely_self]
    others = tuple(
        (process, amount)
        for process, amount in found.processes.items()
        if process != likely_self and amount is not None
    )
    defragmented = missing - cached if missing and cached else None
    outside = total - free - on_device if total and free and on_device else None
    own = this - on_device if this and on_device else found.amount("other")
    unlisted = outside - own if outside and own else None
    for _, amount in others:
        unlisted = unlisted - amount if unlisted else None
    return Account(
        requested=requested,
        total=total,
        free=free,
        allocated=allocated,
        reserved=reserved,
        cached=cached if found.form == "pytorch" else None,
        allowed=allowed,
        room=room,
        missing=missing,
        missing_defragmented=_not_negative(defragmented),
        outside=_not_negative(outside),
        own_outside=_not_negative(own),
        others=others,
        unlisted=_not_negative(unlisted),
        likely_self=likely_self,
        limit_decides=limited,
        overcommitted=bool(total and on_device and on_device.surely_above(total)),
    )


def _not_negative(amount: Amount | None) -> Amount | None:
    """What rounding made negative is 0."""
    if amount is None:
        return None
    return Amount(max(0, amount.low_bytes), max(0, amount.high_bytes))


def _room(
    free: Amount | None, allowed: Amount | None, held: Amount | None
) -> tuple[Amount | None, bool]:
    """What can still be taken, and whether a limit is what decides that."""
    if allowed is None or held is None:
        return free, False
    within = _not_negative(allowed - held)
    if free is None or within is None:
        return within, True
    return smaller(free, within), free.surely_above(within)


def _likely_self(found: Found, on_device: Amount | None) -> int | None:
    """The named process that must be this one, which a container gives another id.

    Outside a container the text says "this process". Where it does not, the one that
    has enough for what PyTorch reserved is this one, if there is no other such.
    """
    if on_device is None or "this_process" in found.amounts:
        return None
    enough = [
        process
        for process, amount in found.processes.items()
        if amount is not None and not on_device.surely_above(amount)
    ]
    return enough[0] if len(enough) == 1 else None


# ---- What was asked for


def asked_range(found: Found) -> tuple[int, int] | None:
    """The bytes that the program may have asked for, before they were rounded up.

    PyTorch's allocator names what it asks the driver for: 2 MiB for at most 1 MiB, 20
    MiB for less than 10 MiB, and else the next multiple of 2 MiB.
    """
    requested = found.amount("requested")
    if requested is None:
        return None
    if found.form != "pytorch" or "oomph" in found.flags:
        return requested.low_bytes, requested.high_bytes
    if requested.is_exact or requested.middle_bytes % _SMALL_BYTES == 0:
        if requested.middle_bytes == _SMALL_BYTES:
            return 1, MIB
        if requested.middle_bytes == _LARGE_BYTES:
            return MIB + 1, _LARGE_BYTES
    low = math.ceil(requested.low_bytes / _SMALL_BYTES) * _SMALL_BYTES
    high = requested.high_bytes // _SMALL_BYTES * _SMALL_BYTES
    if low > high:  # not rounded: another version or setting
        return requested.low_bytes, requested.high_bytes
    return low - _SMALL_BYTES + 1, high


@dataclass(frozen=True)
class Shape:
    """A tensor that is as large as what was asked for.

    Attributes:
        sizes: Its dimensions.
        item_bytes: Bytes of an element.
        names: What each dimension is in the log; empty: the log shows the shape.
        batch: Which of the dimensions is the batch; -1: not known.
    """

    sizes: tuple[int, ...]
    item_bytes: int
    names: tuple[str, ...] = ()
    batch: int = -1

    def __str__(self) -> str:
        shown = " x ".join(map(str, self.sizes))
        said = f"{_DTYPES[self.item_bytes]} {shown}"
        if self.names:
            return f"{said} ({' x '.join(self.names)})"
        return f"{said}, a shape that the log shows"


# Which sizes of a log multiply to large tensors; each is looked for with its names.
_PRODUCTS = (
    ("batch", "length", "vocabulary"),
    ("batch", "heads", "length", "length"),
    ("batch", "length", "inner"),
    ("batch", "length", "width"),
    ("vocabulary", "width"),
)
# Of models that many use; looked for only in a loss whose log names no vocabulary.
VOCABULARIES = {
    30522: "bert",
    32000: "llama 2",
    32768: "mistral",
    50257: "gpt-2",
    50304: "gpt-2, padded",
    128256: "llama 3",
    151936: "qwen",
    152064: "qwen",
    256000: "gemma",
    262144: "gemma 3",
}
_PRECISE = 0.01  # relative; a coarser range is met by chance


def shapes_of(
    found: Found,
    sizes: dict[str, dict[int, str]],
    shown: tuple[tuple[int, ...], ...],
) -> list[Shape]:
    """Shapes that the request fits exactly, as far as the text is exact.

    Args:
        found: The error.
        sizes: Sizes that the log names, by meaning: the name of each.
        shown: Lists of numbers that stand near the error.

    Returns:
        None where the request is so small that many shapes would fit by chance.
    """
    asked = asked_range(found)
    if asked is None or asked[1] - asked[0] > _PRECISE * asked[1]:
        return []
    fitting = []
    for product in _PRODUCTS:
        for chosen in _choices(product, sizes):
            for item in (2, 4):
                if asked[0] <= math.prod(chosen) * item <= asked[1]:
                    names = tuple(
                        sizes[m][n] for m, n in zip(product, chosen, strict=True)
                    )
                    batch = product.index("batch") if "batch" in product else -1
                    fitting.append(Shape(chosen, item, names, batch))
    fitting += [
        Shape(shape, item)
        for shape in shown
        for item in _DTYPES
        if len(shape) > 1 and asked[0] <= math.prod(shape) * item <= asked[1]
    ]
    return fitting


def _choices(
    product: tuple[str, ...], sizes: dict[str, dict[int, str]]
) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for place, meaning in enumerate(product):
        again = product.index(meaning)  # a length that occurs twice is the same
        found = [
            (*chosen, size)
            for chosen in found
            for size in ([chosen[again]] if again < place else sizes.get(meaning, {}))
        ]
    return found
