"""How much host memory there is for blocks that leave the device."""

from __future__ import annotations

import os
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def _meminfo_available_bytes() -> int:
    for line in _MEMINFO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError(f"{_MEMINFO} names no MemAvailable")


def _left_in(group: Path, limit_name: str, used_name: str) -> int | None:
    """What a control group still allows, or None if it sets no limit."""
    try:
        limit = (group / limit_name).read_text().strip()
        used = int((group / used_name).read_text())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return max(0, int(limit) - used)


def _cgroup_left_bytes() -> int | None:
    """What is left in the process's control group and those above it."""
    try:
        entries = _OWN_CGROUP.read_text().splitlines()
    except OSError:
        return None
    left = []
    for entry in entries:
        _, controllers, path = entry.split(":", 2)
        if controllers == "":  # version 2
            root, names = _CGROUPS, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root = _CGROUPS / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = root / path.lstrip("/")
        while True:
            left.append(_left_in(group, *names))
            if group == root or root not in group.parents:
                break
            group = group.parent
    known = [amount for amount in left if amount is not None]
    return min(known) if known else None


def available_bytes() -> int:
    """Host memory that could be taken now, control groups included.

    On a simulated GPU it is the host memory that was asked for.
    """
    from oomph import simulate

    card = simulate.card_in_use()
    if card is not None and card.host_bytes is not None:
        return card.host_bytes
    available = _meminfo_available_bytes()
    left = _cgroup_left_bytes()
    return available if left is None else min(available, left)


def default_limit_bytes() -> int:
    """Half of what is available, shared between the processes of a node."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return available_bytes() // 2 // max(1, ranks)
