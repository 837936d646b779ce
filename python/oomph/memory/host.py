"""How much host memory there is for blocks that leave the device."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from oomph import simulate

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_MAX_MAP_COUNT = Path("/proc/sys/vm/max_map_count")
_MAPS = Path("/proc/self/maps")

BASE = "OOMPH_HOST_AVAILABLE"
"""Set by a process that is alone, for ranks that it may start: what it found, in
bytes. They divide the same number, whenever each starts and whatever others took."""

# Where launchers say how many processes of a job run on this node, the nearest first.
_LOCAL_SIZES = (
    "LOCAL_WORLD_SIZE",  # torchrun, accelerate
    "LOCAL_SIZE",  # DeepSpeed
    "OMPI_COMM_WORLD_LOCAL_SIZE",  # Open MPI
    "MPI_LOCALNRANKS",  # Intel MPI, MPICH
    "SLURM_STEP_TASKS_PER_NODE",  # srun; by node, such as 4(x2),3
)


class _GroupFiles(NamedTuple):
    """The names that a version of control groups has for what is needed here."""

    limits: tuple[str, ...]
    used: str
    cache: str  # in memory.stat: of what is used, files that may be dropped at once


_VERSION_1 = _GroupFiles(
    ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"
)
_VERSION_2 = _GroupFiles(
    ("memory.max", "memory.high"), "memory.current", "inactive_file"
)


def _meminfo_available_bytes() -> int:
    try:
        text = _MEMINFO.read_text()
    except OSError as error:
        raise RuntimeError(
            f"how much host memory there is cannot be read ({error}): mount /proc, or "
            "say how much may be used with host_limit, such as host_limit:8GiB"
        ) from None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError(f"{_MEMINFO} names no MemAvailable")


def _number_in(path: Path) -> int | None:
    """The number in a file; None if there is no such file, or it says ``max``."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _cache_bytes(group: Path, name: str) -> int:
    try:
        found = re.search(rf"^{name} (\d+)$", (group / "memory.stat").read_text(), re.M)
    except OSError:
        return 0
    return int(found.group(1)) if found else 0


def _left_in(group: Path, files: _GroupFiles) -> int | None:
    """What a control group still allows, or None if it sets no limit."""
    limits = [_number_in(group / name) for name in files.limits]
    known = [limit for limit in limits if limit is not None]
    used = _number_in(group / files.used)
    if not known or used is None:
        return None
    return max(0, min(known) - used + _cache_bytes(group, files.cache))


def _own_groups() -> Iterator[tuple[Path, _GroupFiles]]:
    """The process's control groups and those above them, as far as they can be seen."""
    try:
        entries = _OWN_CGROUP.read_text().splitlines()
    except OSError:
        return
    for entry in entries:
        _, controllers, path = entry.split(":", 2)
        if controllers == "":
            root, files = _CGROUPS, _VERSION_2
        elif "memory" in controllers.split(","):
            root, files = _CGROUPS / "memory", _VERSION_1
        else:
            continue
        group = root / path.lstrip("/")
        yield group, files
        for above in group.parents:
            if above == root or root in above.parents:
                yield above, files


def available_bytes() -> int:
    """Host memory that could be taken now, control groups included.

    On a simulated GPU it is the host memory that was asked for.
    """
    card = simulate.card_in_use()
    if card is not None and card.host_bytes is not None:
        return card.host_bytes
    left = [_left_in(group, files) for group, files in _own_groups()]
    return min(
        [_meminfo_available_bytes(), *(amount for amount in left if amount is not None)]
    )


def _local_ranks() -> int:
    """How many processes of this one's job share the node, as far as is known."""
    for name in _LOCAL_SIZES:
        counts = re.findall(r"(?:^|,)(\d+)", os.environ.get(name, ""))
        if counts:
            return max(1, *map(int, counts))
    return 1


def default_limit_bytes() -> int:
    """Half of what is available, shared between the processes of a node.

    A rank divides what the process that started it had found, if that ran oomph, and
    never takes more than half of what is available now: ranks that have already taken
    their shares leave more than that. Without such a number it divides what is
    available now.
    """
    available = available_bytes()
    ranks = _local_ranks()
    if ranks == 1:
        os.environ[BASE] = str(available)
        return available // 2
    base = int(os.environ.get(BASE, available))
    return min(base // ranks, available) // 2


def page_max() -> int:
    """How many host pages this process can have; 0 if nothing limits them.

    A host page that the CPU may use takes a mapping of the process, of which the system
    allows 65,530 unless it is configured otherwise: 128 GiB of pages of 2 MiB. An
    eighth is left to the program.
    """
    allowed = _number_in(_MAX_MAP_COUNT)
    if allowed is None:
        return 0
    used = len(_MAPS.read_bytes().splitlines())
    return max(1, (allowed - used) * 7 // 8)
