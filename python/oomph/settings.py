"""The settings: one string of ``key:value`` pairs, or keyword arguments.

PyTorch's convention: ``OOMPH_CONF=offload:on-oom,host_limit:32GiB``. The same names are
the keyword arguments of :func:`oomph.install`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oomph.base.sizes import parse_size
from oomph.memory import host

VARIABLE = "OOMPH_CONF"
_PAGE_MIN = 2 << 20  # bytes; the granularity of the driver


class SettingsError(ValueError):
    """A setting is unknown, or its value is not allowed. Says what is allowed."""


def _choice(*allowed: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"{value!r} is not one of {', '.join(allowed)}")
        return str(value)

    return parse


def _limit(value: Any) -> float | int:
    """A size in bytes, or a share of the card in (0, 1]."""
    try:
        share = 0.0 if isinstance(value, bool) else float(value)
    except (ValueError, TypeError, OverflowError):
        share = 0.0
    if 0 < share <= 1:
        return share
    size = parse_size(str(value) if isinstance(value, float) else value)
    if size < _PAGE_MIN:
        raise ValueError(f"{value!r} is less than a page of 2 MiB: is a unit missing?")
    return size


def _auto_or_size(value: Any) -> str | int:
    return "auto" if value == "auto" else parse_size(value)


def _page(value: Any) -> str | int:
    size = _auto_or_size(value)
    if isinstance(size, int) and (size < _PAGE_MIN or size & (size - 1)):
        raise ValueError(f"{value!r} is no power of two from 2MiB on")
    return size


@dataclass(frozen=True)
class Setting:
    """One setting: how its value is read, and what stands in the documentation."""

    parse: Callable[[Any], Any]
    default: Any
    allowed: str
    meaning: str


SETTINGS: dict[str, Setting] = {
    "offload": Setting(
        _choice("off", "on-oom", "always"),
        "on-oom",
        "off, on-oom, always",
        "what happens when no device memory is left: an error, or the block is born on "
        "the host; always: what is planned to leave the device does so from the start",
    ),
    "strict": Setting(
        _choice("yes", "no"),
        "no",
        "yes, no",
        "whether a block that would be born on the host for want of device memory is "
        "an error instead; what is planned ahead of need is not",
    ),
    "required": Setting(
        _choice("auto", "yes", "no"),
        "auto",
        "auto, yes, no",
        "what happens where oomph cannot start; yes: an error, also at `import torch`; "
        "no: PyTorch's own allocator is used, and the log says why; auto: yes for "
        "`oomph.install()`, no for `OOMPH_CONF` and `oomph run`, and a driver is "
        "looked for when CUDA is used first",
    ),
    "host_limit": Setting(
        _auto_or_size,
        "auto",
        "auto, a size",
        "the most host memory for such blocks, in each process; auto: half of what is "
        "available, shared between the processes of a node that a launcher started",
    ),
    "device_limit": Setting(
        _limit,
        None,
        "a size, or a share of the card such as 0.9",
        "the most device memory: a smaller card",
    ),
    "reserve": Setting(
        _auto_or_size,
        "auto",
        "auto, a size",
        "device memory left free for libraries that allocate for themselves; auto: 2 % "
        "of the card, at least 256 MiB",
    ),
    "plan": Setting(
        _choice("on", "off"),
        "on",
        "on, off",
        "whether steps that repeat are packed when memory is short",
    ),
    "promote": Setting(
        _choice("on", "off"),
        "on",
        "on, off",
        "whether parameters, gradients and optimizer state that lived on the host all "
        "through a step return to the device at its end, if there is room",
    ),
    "leaks": Setting(
        _choice("off", "count", "report", "raise"),
        "off",
        "off, count, report, raise",
        "whether what grows from step to step is watched ([leaks](leaks.md)); "
        "count: the log says what leaks when the program ends; report: also once it is "
        "found; raise: the step in which it is found ends with `oomph.leaks.LeakError`",
    ),
    "guard": Setting(
        _choice("off", "unmap", "sync", "fill", "unmap+fill", "sync+fill"),
        "off",
        "off, unmap, sync, fill, unmap+fill, sync+fill",
        "for debugging: whether memory that was freed is unmapped, so that its use "
        "fails (sync: each free waits for it), or filled with NaN; see docs/guard.md",
    ),
    "host_pages": Setting(
        _choice("auto", "numa", "host", "pinned", "off"),
        "auto",
        "auto, numa, host, pinned, off",
        "which kind of host memory is used; auto: the first that works",
    ),
    "host_ahead": Setting(
        parse_size,
        256 << 20,
        "a size",
        "host memory made ready ahead of need, once any was needed",
    ),
    "page": Setting(
        _page,
        "auto",
        "auto, a power of two from 2MiB on",
        "size of a physical page; auto: 2 MiB, more where host_limit needs more pages "
        "than the system lets a process map",
    ),
}


def parse(text: str) -> dict[str, Any]:
    """Reads a settings string.

    Args:
        text: ``key:value`` pairs separated by commas; spaces around them are ignored.

    Returns:
        The settings named, with parsed values. Sizes are in bytes.

    Raises:
        SettingsError: A key is unknown, or given twice, or a value is not allowed.

    Example:
        >>> parse("offload:off,reserve:64MiB")
        {'offload': 'off', 'reserve': 67108864}
    """
    found: dict[str, Any] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, colon, value = (piece.strip() for piece in pair.partition(":"))
        if not colon:
            raise SettingsError(f"{pair!r} is no setting; write key:value")
        if key in found:
            raise SettingsError(f"{key!r} is given twice")
        found[key] = value
    return check(found)


def check(values: dict[str, Any]) -> dict[str, Any]:
    """Parses the values of settings given by name; None leaves out a setting.

    Raises:
        SettingsError: A key is unknown or a value is not allowed.
    """
    checked = {}
    for key, value in values.items():
        setting = SETTINGS.get(key)
        if setting is None:
            raise SettingsError(
                f"there is no setting {key!r}; there are: {', '.join(SETTINGS)}"
            )
        if value is None:
            continue
        try:
            checked[key] = setting.parse(value)
        except (ValueError, TypeError) as error:
            raise SettingsError(
                f"{key}: {error} (allowed: {setting.allowed})"
            ) from None
    return checked


def complete(values: dict[str, Any]) -> dict[str, Any]:
    """Adds the defaults of all settings that are not named."""
    return {key: values.get(key, setting.default) for key, setting in SETTINGS.items()}


def for_core(values: dict[str, Any]) -> dict[str, Any]:
    """Turns complete settings into the arguments of ``oomph._C.configure``."""
    from oomph import _C  # the table is read where nothing is built, too

    offload = {
        "off": _C.OFFLOAD_OFF,
        "on-oom": _C.OFFLOAD_ON_OOM,
        "always": _C.OFFLOAD_ALWAYS,
    }
    kinds = {
        "auto": _C.HOST_AUTO,
        "numa": _C.HOST_NUMA,
        "host": _C.HOST_PLAIN,
        "pinned": _C.HOST_PINNED,
        "off": _C.HOST_OFF,
    }
    guards = {
        "off": _C.GUARD_OFF,
        "unmap": _C.GUARD_UNMAP,
        "sync": _C.GUARD_SYNC,
        "fill": _C.GUARD_FILL,
    }
    limit = values["device_limit"]
    host_limit = values["host_limit"]
    reserve = values["reserve"]
    page = values["page"]
    return {
        "offload": offload[values["offload"]],
        "strict": values["strict"] == "yes",
        "host_kind": kinds[values["host_pages"]],
        "host_limit_bytes": (
            host.default_limit_bytes() if host_limit == "auto" else host_limit
        ),
        "host_page_max": host.page_max(),
        "host_ahead_bytes": values["host_ahead"],
        "device_limit_bytes": limit if isinstance(limit, int) else 0,
        "device_limit_share": limit if isinstance(limit, float) else 0.0,
        "reserve_bytes": _C.RESERVE_AUTO if reserve == "auto" else reserve,
        "page_bytes": 0 if page == "auto" else page,
        "plan": values["plan"] == "on",
        "promote": values["promote"] == "on",
        "guard": sum(guards[part] for part in values["guard"].split("+")),
    }


def is_required(text: str) -> bool:
    """Whether a settings string, be the rest of it right or wrong, requires oomph."""
    return "required:yes" in "".join(text.split()).split(",")


def from_environment() -> dict[str, Any] | None:
    """The settings of ``OOMPH_CONF``, or None if it is not set or empty.

    Raises:
        SettingsError: As :func:`parse`.
    """
    text = os.environ.get(VARIABLE)
    try:
        return parse(text) if text else None
    except SettingsError as error:
        raise SettingsError(f"{VARIABLE}={text}: {error}") from None
