"""Which lines allocate what there is, and those of which there is ever more."""

from __future__ import annotations

from itertools import pairwise

import torch

from oomph import _C
from oomph.holders.lines import Line
from oomph.memory import sites
from oomph.memory.sites import Site, is_user

_LINES_MAX = 3
Sites = dict[int, tuple[int, int]]  # blocks and bytes by the number of a site


def live_sites() -> Sites:
    """Blocks and bytes by the line that allocated them, backward's with forward's."""
    found: Sites = {}
    for device in range(torch.cuda.device_count()):
        for number, size_bytes, count in _C.live_sites(device):
            site = number & ~_C.SITE_INFERRED
            blocks, known = found.get(site, (0, 0))
            found[site] = blocks + count, known + size_bytes
    return found


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Where its values are, those that are not zero of a sparse one; None: nowhere."""
    try:
        if tensor.layout is torch.sparse_coo:
            return tensor._values().untyped_storage()
        if tensor.layout is not torch.strided:
            return tensor.values().untyped_storage()
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None  # of a functional wrapper, say


def allocated_at(tensor: torch.Tensor) -> tuple[Line, ...]:
    """The line that asked for the memory of a tensor, if it is known."""
    storage = storage_of(tensor)
    if storage is None or storage.device.type != "cuda":
        return ()
    try:
        site = sites.resolve(_C.site_of(storage.data_ptr()))
    except ValueError:
        return ()
    if site is None or not is_user(site.file):
        return ()
    return (_line_of(site),)


def growing_lines(scans: list[Sites]) -> list[Line]:
    """The lines of which there were more blocks at each scan, the most bytes first.

    If there are none: those whose blocks had more bytes.

    Args:
        scans: Blocks and bytes by site, at each scan.
    """
    grown = _grown(scans, 0) or _grown(scans, 1)
    most = sorted(grown, key=lambda n: grown[n], reverse=True)[:_LINES_MAX]
    return [line for line in map(resolved, most) if line is not None]


def longer(scans: list[Sites]) -> list[tuple[int, int]]:
    """The sites whose blocks had more bytes at each scan, but were not more.

    Gives each with its growth in bytes, the most first.
    """
    blocks = _grown(scans, 0)
    found = [(n, size) for n, size in _grown(scans, 1).items() if n not in blocks]
    return sorted(found, key=lambda grown: -grown[1])


def _grown(scans: list[Sites], which: int) -> dict[int, int]:
    """The growth in bytes of sites that had more blocks (0) or bytes (1) each time."""
    grown: dict[int, int] = {}
    for number, (_, last_bytes) in scans[-1].items() if len(scans) > 1 else ():
        counts = [scan.get(number, (0, 0)) for scan in scans]
        if all(b[which] > a[which] for a, b in pairwise(counts)):
            grown[number] = last_bytes - counts[0][1]
    return grown


def resolved(number: int) -> Line | None:
    """The line of a site; None: unknown."""
    site = sites.resolve(number)
    return None if site is None else _line_of(site)


def _line_of(site: Site) -> Line:
    name = site.function.rpartition(".")[2]
    return Line(site.file, site.line, "" if name == "<module>" else name)
