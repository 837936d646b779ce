"""What oomph logs: why it is not in use, a line a step on rescues, a table at exit.

Through the logger ``oomph``; nothing else is ever said unasked.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from oomph import _C
from oomph.base import ranks
from oomph.base.sizes import format_size
from oomph.base.tables import labelled

logger = logging.getLogger("oomph")


def _name_rank(record: logging.LogRecord) -> bool:
    """Has each line say which rank of a job it comes from: a filter of the logger."""
    who = ranks.label()
    if who and not hasattr(record, "rank"):
        record.msg, record.args = f"[{who}] {record.getMessage()}", ()
        record.rank = who
    return True


logger.addFilter(_name_rank)

_STEPS_SHOWN = 10  # in the table, of those whose rescues are known


def asked_for(text: str) -> None:
    """Says what a setting asks for, at whatever level the program logs in general.

    A level of the logger ``oomph`` itself counts, and so does ``logging.disable()``.
    """
    level = logging.WARNING
    is_off = logger.manager.disable >= level
    if logger.level != logging.NOTSET or is_off:
        logger.log(level, "%s", text)
        return
    logger.handle(logger.makeRecord(logger.name, level, "", 0, text, (), None))


@functools.cache
def not_in_use(reason: str) -> None:
    """Says once that PyTorch's own allocator is used, and why."""
    logger.warning("oomph is not in use: %s", reason)


def _speed(bytes_per_s: int) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s" if bytes_per_s > 0 else "not measured"


def _cost(size_bytes: float, bytes_per_s: int) -> str:
    if bytes_per_s <= 0:
        return "each pass over it runs at the speed of the link"
    return (
        f"each pass over it takes about {size_bytes / bytes_per_s * 1e3:.1f} ms "
        f"at {_speed(bytes_per_s)}"
    )


def rescued(device: int, size_bytes: int) -> None:
    """Reports the first rescue of a step. Called by the core, in the main thread.

    Args:
        device: The device that ran out of memory.
        size_bytes: Bytes of a block that fell back to the host.
    """
    now = _C.stats(device)
    used = now["step_host_used_bytes"]
    logger.warning(
        "GPU %d is out of memory: %s fell back to host memory (%s of %s in use); %s%s",
        device,
        format_size(size_bytes),
        format_size(now["host_bytes"]),
        format_size(now["host_limit_bytes"]),
        _cost(size_bytes, now["link_to_device_bytes_per_s"]),
        f"; the last step used {format_size(used)} on host pages" if used else "",
    )


# ---- At the end: a table, and what others have to say

more_at_exit: list[Callable[[], None]] = []
leaks_found: Callable[[], Any] | None = None  # once anything is watched: a report
more_rows: list[Callable[[int], dict[str, str]]] = []
"""Others that have something to say about a device: each gives the names and texts of
its rows, and none where nothing was offloaded."""


def _rescue_rows(now: dict[str, Any]) -> dict[str, str]:
    """What rescues came to, and what they cost; empty if there were none."""
    if now["rescues"] == 0:
        return {}
    by_step = now["rescues_last_steps"][-_STEPS_SHOWN:]
    paid = now["rescued_bytes"] / max(1, now["steps"])
    total = f"{now['rescues']}, {format_size(now['rescued_bytes'])}"
    return {
        "blocks that fell back to the host": total,
        "in each of the last steps": " ".join(map(str, by_step))
        or "none ended: call oomph.step() after each",
        "per step, on average" if now["steps"] else "in the first step": (
            f"{format_size(paid)}; {_cost(paid, now['link_to_device_bytes_per_s'])}"
        ),
    }


def _host_rows(now: dict[str, Any]) -> dict[str, str]:
    """What the last step used on host pages; empty if none ever did."""
    if now["host_used_bytes"] == 0:
        return {}
    name, used = "used on host pages so far", now["host_used_bytes"]
    if now["steps"]:
        name = "used on host pages in the last step"
        used = now["step_host_used_bytes"]
    cost = f"; {_cost(used, now['link_to_device_bytes_per_s'])}" if used else ""
    return {name: format_size(used) + cost}


def rows(device: int) -> dict[str, str]:
    """The table's column of a device: texts by the name of their row.

    Empty if nothing was rescued or offloaded there, or used on host pages.
    """
    now = _C.stats(device)
    paid = {**_rescue_rows(now), **_host_rows(now)}
    for source in more_rows:
        paid.update(source(device))
    if not paid:
        return {}
    found = {
        "steps": str(now["steps"]),
        **paid,
        "device memory, peak": format_size(now["device_bytes_peak"]),
    }
    if now["host_bytes_peak"] == 0:  # what ran again was enough
        return found
    return {
        **found,
        "host memory, peak": f"{format_size(now['host_bytes_peak'])} of "
        f"{format_size(now['host_limit_bytes'])}",
        "link": f"{_speed(now['link_to_host_bytes_per_s'])} to the host, "
        f"{_speed(now['link_to_device_bytes_per_s'])} to the device",
    }


def finish() -> None:
    """At exit: what rescues cost, what others have to say, the end of the core's work.

    A table for each device on which something was offloaded.
    """
    lines = []
    for device in range(_C.DEVICE_MAX):
        found = rows(device)
        if found:
            how = "out of" if _C.stats(device)["rescues"] else "short of"
            lines.append(f"GPU {device} was {how} memory:")
            lines += labelled(found.items())
    if lines:
        logger.warning("%s", "\n".join(lines))
    for report in more_at_exit:
        report()
    _C.stop()
