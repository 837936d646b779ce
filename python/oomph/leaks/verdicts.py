"""Infers the mistake and its line from what grows and what holds it."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from oomph import _C
from oomph.leaks import graphs, source
from oomph.leaks.findings import Finding
from oomph.leaks.inventory import Group
from oomph.leaks.references import Chain, Hop, Search
from oomph.leaks.source import Line
from oomph.leaks.stores import Stores
from oomph.memory import sites
from oomph.memory.sites import Site, is_user

_SAMPLES = 4  # of a group, whose holders are searched for
_CRUMBS_BYTES = 2048  # per step; numbers that hold no graph are not worth a word
_ERRORS = ("last_value", "last_traceback", "last_exc")
_LINES_MAX = 3
_CACHES = ("_lru_cache_wrapper",)
Sites = dict[int, tuple[int, int]]  # blocks and bytes by the number of a site
_NAMED = ("attr", "local", "global", "class", "cell", "frame")


@dataclass(frozen=True)
class Judged:
    """A finding, and what the code says about an end of its growth.

    Attributes:
        finding: What grows.
        limit: ``bounded``: the code takes things out again; ``unknown``: it may well
            end, since it is a cache, or grows up to a number, or since no line of the
            user's fills it; empty: nothing speaks for it.
    """

    finding: Finding
    limit: str = ""


def allocated_at(tensor: torch.Tensor) -> tuple[Line, ...]:
    """The line that asked for the memory of a tensor, if it is known."""
    try:
        site = sites.resolve(_C.site_of(tensor.untyped_storage().data_ptr()))
    except ValueError:
        return ()
    if site is None or not is_user(site.file):
        return ()
    return (_line_of(site),)


class Judge:
    """Judges what one look found."""

    def __init__(self, files: Iterable[str]) -> None:
        self._stores = Stores(files)
        self._search = Search()
        self._running = {"", *source.running_functions()}

    def group(self, group: Group) -> list[Judged]:
        """The mistakes behind a kind of tensor of which there are ever more."""
        found: dict[tuple[str, Line | None], Judged] = {}
        samples = group.kept[:_SAMPLES]
        for seen in samples:
            tensor = seen.ref()
            if tensor is None:
                continue
            chain = self._search.chain(tensor, frozenset([id(samples), id(group)]))
            judged = self._judge(tensor, chain, group)
            if judged is not None:
                key = judged.finding.verdict, judged.finding.line
                found.setdefault(key, judged)
        return list(found.values())

    def _judge(self, tensor: torch.Tensor, chain: Chain, group: Group) -> Judged | None:
        if not chain.hops or any(hop.bounded for hop in chain.hops):
            return None
        if tensor.grad_fn is None and group.size_bytes <= _CRUMBS_BYTES:
            return None
        if any(hop.holder in _CACHES for hop in chain.hops):
            return None
        verdict, name, into = self._mistake(tensor, chain)
        line, limit = self._line(chain, verdict, name, into)
        return Judged(
            Finding(
                verdict,
                line or next(iter(allocated_at(tensor)), None),
                growth_bytes=int(group.size_bytes),
                count=group.count,
                held_by=self._told(chain),
                allocated_at=allocated_at(tensor),
                **_described(tensor),
            ),
            limit,
        )

    def _mistake(
        self, tensor: torch.Tensor, chain: Chain
    ) -> tuple[str, Hop | None, bool]:
        """The verdict, the name that tells the line, and if things are put into it."""
        hops, kinds = chain.hops, chain.kinds()
        if chain.circle:
            return "cycle", chain.closing, False
        if _is_notebook(hops):
            return "notebook", hops[-1], True
        beyond = _beyond(hops, ("traceback", "exception"))
        if beyond:
            name, into = _first_name(beyond)
            return "traceback", name, into
        name, into = _first_name(hops)
        if name is not None and name.kind == "cell":
            outer, outer_into = _first_name(hops[hops.index(name) + 1 :])
            if outer is not None:
                return "closure", outer, outer_into
        if tensor.dim() == 0 and tensor.grad_fn is not None:
            return "loss kept", name, into
        if "global" in kinds and self._is_hidden(name, into):
            return "global", name, into
        return "outputs retained", name, into

    def _told(self, chain: Chain) -> str:
        """The chain in words; variables are told with the line that makes them."""
        hops = []
        for hop in chain.hops:
            made = self._stores.made(hop) if hop.kind in ("local", "global") else None
            hops.append(hop if made is None else replace(hop, line=made.line))
        return replace(chain, hops=hops).text

    def _is_hidden(self, name: Hop | None, into: bool) -> bool:
        """Whether a module's global grows inside of a function that has ended."""
        if name is None or name.kind != "global":
            return False
        store = self._stores.into(name) if into else None
        return store is not None and store.line.function not in self._running

    def _line(
        self, chain: Chain, verdict: str, name: Hop | None, into: bool
    ) -> tuple[Line | None, str]:
        """The line that makes the mistake, and what limits it: see :class:`Judged`."""
        if verdict == "notebook":
            return _cell_line(chain.hops), ""
        if name is None:
            return None, "" if chain.circle else "unknown"
        if into:
            store = self._stores.into(name)
            if store is None:
                return name.line, "unknown"
            if self._stores.is_bounded(store, name):
                return store.line, "bounded"
            return store.line, "unknown" if store.guarded else ""
        if name.kind == "attr":
            store = self._stores.attribute(name.name) or self._stores.binding(name)
        else:
            store = self._stores.binding(name)
        return (store.line if store else name.line), ""

    def chained(
        self, tensors: list[torch.Tensor], starts: list[int], growth_bytes: int
    ) -> list[Finding]:
        """Tensors whose graph goes back through several steps.

        Args:
            tensors: What there is.
            starts: The numbers of autograd's nodes at which the last steps began.
            growth_bytes: What each step adds, as measured.
        """
        found: dict[Line | None, Finding] = {}
        for tensor in tensors:
            root = tensor.grad_fn
            if root is None or graphs.steps_spanned(root, starts) < len(starts):
                continue
            chain = self._search.chain(tensor, frozenset([id(tensors)]))
            name, _ = _first_name(chain.hops)
            if name is None:
                continue
            finding = self._chained(tensor, chain, name, growth_bytes)
            found.setdefault(finding.line, finding)
        return list(found.values())

    def joined(
        self, sites: list[Sites], period: int, tensors: list[torch.Tensor]
    ) -> list[Judged]:
        """Tensors that a line joins with more, again and again.

        Args:
            sites: Blocks and bytes by site, at each scan.
            period: Steps from scan to scan.
            tensors: What there is.
        """
        steps = period * (len(sites) - 1)
        found = [
            self._joined(line, grown_bytes // steps, tensors)
            for number, grown_bytes in _longer(sites).items()
            if grown_bytes > _CRUMBS_BYTES * steps and (line := _resolved(number))
        ]
        return [judged for judged in found if judged is not None]

    def _joined(
        self, line: Line, step_bytes: int, tensors: list[torch.Tensor]
    ) -> Judged | None:
        store = self._stores.joining(line)
        if store is None or store.function not in self._running:
            return None
        if self._stores.is_bounded(store):
            return None
        made = [tensor for tensor in tensors if allocated_at(tensor) == (line,)]
        finding = Finding(
            "outputs retained",
            store.line,
            growth_bytes=step_bytes,
            held_by=f"`{store.to[-1]}`, which holds everything that was joined so far",
            allocated_at=(line,),
            **(_described(max(made, key=torch.Tensor.numel)) if made else {}),
        )
        return Judged(finding, "unknown" if store.guarded else "")

    def _chained(
        self, tensor: torch.Tensor, chain: Chain, name: Hop, growth_bytes: int
    ) -> Finding:
        store = self._stores.binding(name)
        return Finding(
            "loss kept" if tensor.dim() == 0 else "graph retained",
            store.line if store else name.line,
            growth_bytes=growth_bytes,
            held_by=self._told(chain),
            allocated_at=allocated_at(tensor),
            note="its graph goes back through all steps so far",
            **_described(tensor),
        )


def explain(
    findings: list[Finding], lines: list[Line], growth_bytes: int
) -> list[Finding]:
    """Adds the lines that allocate what grows, and all of what grows.

    Args:
        findings: Of one look; several share what grows in a way that is not known.
        lines: As :func:`growing_lines` gives them.
        growth_bytes: By how much memory grows in a step, in all: what a graph keeps is
            seen by autograd alone.
    """
    if len(findings) != 1:
        return findings
    known = findings[0].allocated_at
    places = (*known, *(line for line in lines if line not in known))
    size_bytes = max(findings[0].growth_bytes, growth_bytes)
    return [
        replace(findings[0], growth_bytes=size_bytes, allocated_at=places[:_LINES_MAX])
    ]


def unheld(lines: list[Line], growth_bytes: int) -> Finding:
    """What grows though nothing in Python holds more and more tensors."""
    return Finding("grows", lines[0], growth_bytes, allocated_at=tuple(lines))


def growing_lines(sites: list[Sites]) -> list[Line]:
    """The lines of which there were more blocks at each scan, the most bytes first.

    Args:
        sites: Blocks and bytes by site, at each scan.
    """
    grown = _grown(sites, 0)
    most = sorted(grown, key=lambda n: grown[n], reverse=True)[:_LINES_MAX]
    return [line for line in map(_resolved, most) if line is not None]


def _longer(sites: list[Sites]) -> dict[int, int]:
    """The sites whose blocks had more bytes at each scan, but were not more."""
    blocks = _grown(sites, 0)
    return {n: size for n, size in _grown(sites, 1).items() if n not in blocks}


def _grown(sites: list[Sites], which: int) -> dict[int, int]:
    """The growth in bytes of sites that had more blocks (0) or bytes (1) each time."""
    grown: dict[int, int] = {}
    for number, (_, last_bytes) in sites[-1].items() if len(sites) > 1 else ():
        counts = [scan.get(number, (0, 0)) for scan in sites]
        if all(b[which] > a[which] for a, b in pairwise(counts)):
            grown[number] = last_bytes - counts[0][1]
    return grown


def _resolved(number: int) -> Line | None:
    site = sites.resolve(number)
    return None if site is None else _line_of(site)


def _line_of(site: Site) -> Line:
    name = site.function.rpartition(".")[2]
    return Line(site.file, site.line, "" if name == "<module>" else name)


def _described(tensor: torch.Tensor) -> dict[str, Any]:
    made_by = tensor.grad_fn
    return {
        "shape": tuple(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "made_by": type(made_by).__name__ if made_by is not None else None,
        "device": tensor.device.index or 0,
    }


def _first_name(hops: list[Hop]) -> tuple[Hop | None, bool]:
    """The first hop that has a name, and whether a container came before it."""
    into = False
    for hop in hops:
        if hop.kind in _NAMED:
            return hop, into
        into |= hop.kind == "item"
    return None, into


def _beyond(hops: list[Hop], kinds: tuple[str, ...]) -> list[Hop]:
    """The hops after the last of these kinds; none if there is none."""
    places = [i for i, hop in enumerate(hops) if hop.kind in kinds]
    return hops[places[-1] + 1 :] if places else []


def _is_notebook(hops: list[Hop]) -> bool:
    last = hops[-1]
    if last.kind != "global":
        return False
    if last.holder == "sys" and last.name in _ERRORS:
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
