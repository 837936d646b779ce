"""What errors that were caught still hold: steps that failed, with their graphs.

The traceback of an error holds the variables of all functions that it passed through.
What these alone hold is held by the error, be it a batch, a model or an optimizer; and
so is what their graphs have saved.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NamedTuple

from oomph.holders.frames import LAST_ERROR, running
from oomph.holders.saved import address_of, saved
from oomph.holders.search import Search, are_in

if TYPE_CHECKING:
    from oomph.diagnosis.categories import BlockList

_NOTE = "_oomph_where"


@dataclass(frozen=True)
class KeptErrors:
    """Errors that still hold memory, and are kept by the same holder.

    Attributes:
        what: "error", or "traceback", of which the error is gone.
        places: The lines that had asked for more, of each; "": unknown.
        holder: The chain of references that keeps them; "": none was found.
        is_handled: Whether an ``except`` block that handles one has not ended.
        addrs: Of the blocks that they hold.
        own: Of these, those that nothing else holds for certain.
        size_bytes: Of all of them.
    """

    what: str
    places: list[str]
    holder: str
    is_handled: bool
    addrs: frozenset[int]
    own: frozenset[int]
    size_bytes: int

    @property
    def action(self) -> str:
        """What to do about it."""
        place = next(filter(None, self.places), "")
        error = f"the {self.what} of {place}" if place else f"the {self.what}"
        if self.is_handled:
            return f"trying again after the except block for {error}, not inside it"
        if self.holder.endswith("global of sys"):
            names = [f"sys.{name}" for name in LAST_ERROR if hasattr(sys, name)]
            return f"del {', '.join(names)}: they hold {error}"
        count = len(self.places)
        if count > 1:
            error = f"the {count} errors" + (
                f", such as that of {place}" if place else ""
            )
        return f"dropping {error}, kept by {self.holder or 'something'}"


def note(error: BaseException, where: str) -> None:
    """Has an error know the line that asked for more."""
    setattr(error, _NOTE, where)


def state_of(error: BaseException) -> dict[str, Any]:
    """An error's own attributes, which may go to another process."""
    return {key: value for key, value in vars(error).items() if key != _NOTE}


def find(objects: Sequence[Any], blocks: BlockList) -> list[KeptErrors]:
    """Errors, and tracebacks, that hold some of the blocks.

    Args:
        objects: All that there are; nothing is to change meanwhile.
        blocks: Those in use.
    """
    search = Search()
    tracebacks = [o for o in objects if type(o) is types.TracebackType]
    kept = _kept(objects, tracebacks, search)
    if not kept:
        return []
    sizes = dict(zip(blocks.addrs, blocks.sizes, strict=True))
    tensors = _unheld(_on(objects, sizes), [*kept, *tracebacks], search)
    found: list[_Found] = []
    known: set[int] = set()
    for error in kept:
        inside = are_in(error, [tensor for tensor, _ in tensors], kept)
        held = [each for each, is_in in zip(tensors, inside, strict=True) if is_in]
        own = {addr for _, addr in held} - known
        graphs = {address_of(t) for t in saved(dict.fromkeys(t for t, _ in held))}
        addrs = (own | (graphs & sizes.keys())) - known
        if addrs:
            found.append(_Found(error, frozenset(own), frozenset(addrs)))
        known |= addrs
    return _by_holder(found, sizes, search)


class _Found(NamedTuple):
    """What an error holds; of what is its own, no name leads to a tensor."""

    error: Any
    own: frozenset[int]
    addrs: frozenset[int]


def _kept(
    objects: Sequence[Any], tracebacks: list[types.TracebackType], search: Search
) -> list[Any]:
    """Errors with the variables of functions that have ended, and such tracebacks.

    The traceback of the error that is being made now belongs to no object yet.
    """
    now = set(map(id, running()))
    kinds = {kind for kind in set(map(type, objects)) if BaseException in kind.__mro__}
    errors = [o for o in objects if type(o) in kinds]
    inner = {id(traceback.tb_next) for traceback in tracebacks}
    inner |= {id(error.__traceback__) for error in errors}
    bare = [traceback for traceback in tracebacks if id(traceback) not in inner]

    def has_ended(traceback: types.TracebackType | None) -> bool:
        return any(id(frame) not in now for frame, _ in walk_tb(traceback))

    kept: list[Any] = [error for error in errors if has_ended(error.__traceback__)]
    bare = [traceback for traceback in bare if has_ended(traceback)]
    held = search.reaches(bare, [bare])
    return kept + [each for each, is_held in zip(bare, held, strict=True) if is_held]


def _on(objects: Sequence[Any], sizes: dict[int, int]) -> list[tuple[Any, int]]:
    """The tensors that lie in the blocks, gradients as well, with their addresses."""
    import torch

    found = []
    for tensor in (o for o in objects if issubclass(type(o), torch.Tensor)):
        if tensor.is_cuda and tensor.layout is torch.strided:
            found.append((tensor, address_of(tensor)))
            if tensor.is_leaf and tensor.grad is not None:  # perhaps no object yet
                found.append((tensor, address_of(tensor.grad)))
    return [(tensor, addr) for tensor, addr in found if addr in sizes]


def _unheld(
    tensors: list[tuple[Any, int]], avoid: list[Any], search: Search
) -> list[tuple[Any, int]]:
    """Those in blocks that no name leads to, but for errors and tracebacks."""
    reached = search.reaches([tensor for tensor, _ in tensors], [*avoid, avoid])
    pairs = [*zip(tensors, reached, strict=True)]
    held = {addr for (_, addr), is_reached in pairs if is_reached}
    return [(tensor, addr) for tensor, addr in tensors if addr not in held]


def _by_holder(
    found: list[_Found], sizes: dict[int, int], search: Search
) -> list[KeptErrors]:
    errors = [each.error for each in found]
    chains = search.chains(errors, [errors], far=False) if errors else ()
    handled = [*map(id, _handled())]
    groups: dict[tuple[str, bool, str], list[_Found]] = {}
    for each, chain in zip(found, chains, strict=True):
        is_error = isinstance(each.error, BaseException)
        what = "error" if is_error else "traceback"
        key = what, id(each.error) in handled, chain.text
        groups.setdefault(key, []).append(each)
    return [
        KeptErrors(
            what,
            [getattr(each.error, _NOTE, "") for each in group],
            holder,
            is_handled,
            addrs := frozenset().union(*(each.addrs for each in group)),
            frozenset().union(*(each.own for each in group)),
            sum(sizes[addr] for addr in addrs),
        )
        for (what, is_handled, holder), group in groups.items()
    ]


def _handled() -> Iterator[BaseException]:
    """The errors that ``except`` blocks of this thread handle now."""
    error = sys.exc_info()[1]
    while error is not None:
        yield error
        error = error.__context__
