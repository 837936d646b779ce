"""What errors that were caught still hold: steps that failed, with their graphs.

The traceback of an error holds the variables of all functions that it passed through.
What a step had made when it ran out of memory is noted with its error; what of that is
still there when memory runs out again, the error keeps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oomph.holders.frames import gpu_tensors
from oomph.holders.search import Search

if TYPE_CHECKING:
    from oomph.diagnosis.categories import BlockList

_NOTE = "_oomph_made"


@dataclass(frozen=True)
class Made:
    """What a step had made when it ran out of memory.

    Attributes:
        device: Index of the device.
        where: The line that asked for more, as ``file:line (function)``; "": unknown.
        sizes: Bytes of its blocks by their addresses.
    """

    device: int
    where: str
    sizes: dict[int, int]


@dataclass(frozen=True)
class KeptError:
    """An error that still holds what its step had made.

    Attributes:
        where: The line that had asked for more; "": unknown.
        holder: The chain of references that keeps it; "": none was found.
        is_handled: Whether an ``except`` block that handles it has not ended.
        addrs: Of the blocks that it holds.
        size_bytes: Of all of them.
    """

    where: str
    holder: str
    is_handled: bool
    addrs: frozenset[int]
    size_bytes: int

    @property
    def action(self) -> str:
        """What to do about it."""
        error = f"the error of {self.where}" if self.where else "the error"
        if self.is_handled:
            return f"trying again after the except block for {error}, not inside it"
        return f"dropping {error}, kept by {self.holder or 'something'}"


def note(error: BaseException, made: Made) -> None:
    """Has an error know what its step had made."""
    setattr(error, _NOTE, made)


def state_of(error: BaseException) -> dict[str, Any]:
    """An error's own attributes, which may go to another process."""
    return {key: value for key, value in vars(error).items() if key != _NOTE}


def find(errors: Sequence[BaseException], blocks: BlockList) -> list[KeptError]:
    """Those of some errors that hold some of the blocks.

    Args:
        errors: All that there are; nothing is to change meanwhile.
        blocks: Those in use.
    """
    sizes = dict(zip(blocks.addrs, blocks.sizes, strict=True))
    found = []
    for error in errors:
        made: Made | None = vars(error).get(_NOTE)
        if made is None or made.device != blocks.device:
            continue
        held = sizes.items() & made.sizes.items()
        addrs = frozenset(addr for addr, _ in held)
        kept = gpu_tensors(error.__traceback__)
        if any(tensor.untyped_storage().data_ptr() in addrs for tensor in kept):
            found.append((error, made, addrs, sum(size for _, size in held)))
    chains = Search().chains([each[0] for each in found], [errors]) if found else ()
    handled = list(_handled())
    return [
        KeptError(made.where, chain.text, any(e is error for e in handled), addrs, size)
        for (error, made, addrs, size), chain in zip(found, chains, strict=True)
    ]


def _handled() -> Iterator[BaseException]:
    """The errors that ``except`` blocks of this thread handle now."""
    error = sys.exc_info()[1]
    while error is not None:
        yield error
        error = error.__context__
