"""What the chain of references from a name to a tensor says of a leak.

Each clue is read off the kinds and names of the references in a chain that was found
anyway. Nothing is collected before something grows, so it costs nothing until then;
then a line of source is looked up at most.
"""

from __future__ import annotations

import functools
import itertools
import linecache
from dataclasses import replace
from traceback import walk_tb
from typing import Any

import torch

from oomph.base.sizes import format_size
from oomph.holders.chain import Chain, Hop
from oomph.holders.frames import LAST_ERROR
from oomph.holders.lines import Line, line_of, line_of_code
from oomph.holders.search import are_in
from oomph.leaks.lines import source
from oomph.leaks.lines.allocated import storage_of
from oomph.memory.sites import is_user

_VIEW_OF = 2  # times as many bytes at least, or what a view keeps is no news
_METRIC = ("update", "reset")  # what metrics of all libraries have
_KEEPING: dict[Any, str] = {  # iterators that keep what they have given
    itertools.cycle: "itertools.cycle() keeps all that it gave in its first round: "
    "begin again with a new iterator instead",
    getattr(itertools, "_tee_dataobject", ()): "itertools.tee() keeps what one of its "
    "iterators has given and another has yet to give: read them together",
}
_NAMED = ("attr", "local", "global", "class", "cell", "frame")


def that_holds_most(chains: list[Chain], tensors: list[torch.Tensor]) -> Chain:
    """Of the chains to some tensors the one whose holder has most of them.

    The shortest chain to most may lead to something that has a part of what another
    holds, such as its last entries.
    """
    texts = [chain.text for chain in chains]
    held = {text: texts.count(text) for text in texts}
    by_text = {t: c for t, c in zip(texts, chains, strict=True) if c.hops}
    if len(by_text) > 1:
        apart = zip(
            *(reversed(chain.things) for chain in by_text.values()), strict=False
        )
        shared = len(
            list(itertools.takewhile(lambda same: len(set(map(id, same))) == 1, apart))
        )
        for text, chain in by_text.items():
            if shared < len(chain.things):
                holder = chain.things[-1 - shared]
                held[text] = max(held[text], sum(are_in(holder, tensors, [tensors])))
    return chains[texts.index(max(texts, key=held.__getitem__))]


def limits_itself(chain: Chain) -> bool:
    """Whether a holder on the way is built to have a bound, and has one."""
    if any(hop.bounded for hop in chain.hops):
        return True
    for thing in chain.things[1:]:
        if isinstance(thing, functools._lru_cache_wrapper):
            return thing.cache_info().maxsize is not None
        size = getattr(thing, "__dict__", {}).get("maxsize")
        if type(size) is int and size > 0:
            return True
    return False


def advice(tensor: torch.Tensor, chain: Chain) -> str:
    """What to do, as far as the tensor or a holder on the way tells; "": none does."""
    if any(isinstance(thing, torch.nn.Parameter) for thing in (tensor, *chain.things)):
        return (
            "make it once, or let go of it when it is no longer used: it may also be "
            "in a module, and in param_groups and state of an optimizer"
        )
    for thing in chain.things[1:]:
        kind = type(thing)
        if issubclass(kind, torch.autograd.function.FunctionCtx):
            return (
                "pass it to ctx.save_for_backward() and read ctx.saved_tensors: as an "
                "attribute of ctx it is in a reference cycle"
            )
        if all(callable(getattr(kind, name, None)) for name in _METRIC):
            return (
                f"call .reset() of the {kind.__name__} once its value has been read, "
                "such as after each epoch: it keeps what it is given until then"
            )
        kept = next((text for k, text in _KEEPING.items() if issubclass(kind, k)), "")
        if kept:
            return kept
    storage = storage_of(tensor)
    if storage is not None and _VIEW_OF * tensor.nbytes <= storage.nbytes():
        return (
            f"each is a view that keeps all {format_size(storage.nbytes())} of its "
            "base: keep a .clone() of what you need, or .detach().cpu()"
        )
    return ""


def is_bare_local(chain: Chain) -> bool:
    """Whether a running function's variable is all that holds it.

    If something more lasting has such a graph, what was computed from that has it, too.
    """
    return [hop.kind for hop in chain.hops] == ["local"]


def fills_a_module(chain: Chain) -> bool:
    """Whether a module's variable is a container that holds it."""
    name, into = first_name(chain.hops)
    return name is not None and name.kind == "global" and into


def known_line(verdict: str, chain: Chain) -> Line | None:
    """The line that the chain itself shows."""
    if verdict == "notebook":
        return _cell_line(chain.hops)
    if verdict == "raised again":
        return next(filter(None, map(raised_again, chain.exceptions())))
    for thing in chain.things[1:]:
        if isinstance(thing, functools._lru_cache_wrapper):
            code = getattr(thing.__wrapped__, "__code__", None)
            return None if code is None else line_of_code(code)
    if chain.circle and chain.closing is not None:
        name, made = chain.closing.name, chain.closing.line
        handed = source.hands_over(made) if made is not None else None
        if handed is not None:
            return handed
        is_attribute = chain.closing.kind == "attr"
        puts = source.puts_into(name, binds=False)
        puts = puts or source.puts_into(name, is_attribute=is_attribute)
        return puts or made
    return None


def raised_again(error: BaseException) -> Line | None:
    """The line that raises an exception which has been raised before; None: none does.

    Each time its traceback gets longer at the front: it begins where it began before.
    """
    line, first = None, None
    for frame, number in walk_tb(error.__traceback__):
        place = frame.f_code, number
        if place == first:
            return line
        first = first or place
        if is_user(frame.f_code.co_filename):
            line = replace(line_of(frame), line=number)
    return None


def first_name(hops: list[Hop]) -> tuple[Hop | None, bool]:
    """The first hop that has a name, and whether a container came before it."""
    into = False
    for hop in hops:
        if hop.kind in _NAMED:
            return hop, into
        into |= hop.kind == "item"
    return None, into


def is_notebook(hops: list[Hop]) -> bool:
    """Whether a notebook keeps it: the result of a cell, or the last error."""
    last = hops[-1]
    if last.kind != "global":
        return False
    if last.holder == "sys" and last.name in LAST_ERROR:
        return True
    return last.name in ("Out", "_oh") and len(hops) > 1 and hops[-2].kind == "item"


def _cell_line(hops: list[Hop]) -> Line | None:
    """The last line of the cell whose result Out[] holds."""
    key = hops[-2].name if len(hops) > 1 else ""
    for file in list(linecache.cache):
        if f"-input-{key}-" in file:
            tree = source.tree(file)
            if tree is not None and tree.body:
                return Line(file, tree.body[-1].lineno)
    return None
