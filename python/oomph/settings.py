"""The settings: one string of ``key:value`` pairs, or keyword arguments.

PyTorch's convention: ``OOMPH_CONF=offload:on-oom,host_limit:32GiB``. The same names are
the keyword arguments of :func:`oomph.install`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypedDict

from oomph.base.sizes import parse_size
from oomph.memory import host

VARIABLE = "OOMPH_CONF"
_PAGE_MIN = 2 << 20  # bytes; the granularity of the driver
Core = Callable[[Any], dict[str, Any]]


class SettingsError(ValueError):
    """A setting is unknown, or its value is not allowed; the text says what is.

    Example:
        >>> try:
        ...     oomph.install(offload="sometimes")
        ... except oomph.SettingsError as error:
        ...     print(error)
        offload: 'sometimes' is not one of auto, off, on-oom, always (allowed: ...)
    """


def _limit(value: Any) -> float | int:
    """A size in bytes, or a fraction of the card in (0, 1]."""
    try:
        fraction = 0.0 if isinstance(value, bool) else float(value)
    except (ValueError, TypeError, OverflowError):
        fraction = 0.0
    if 0 < fraction <= 1:
        return fraction
    size = parse_size(str(value) if isinstance(value, float) else value)
    if size < _PAGE_MIN:
        raise ValueError(f"{value!r} is less than a page of 2 MiB: is a unit missing?")
    return size


def _auto_or_size(value: Any) -> str | int:
    return "auto" if value == "auto" else parse_size(value)


def _page(value: Any) -> str | int:
    size = _auto_or_size(value)
    if isinstance(size, int) and (size < _PAGE_MIN or size & (size - 1)):
        raise ValueError(f"{value!r} is not a power of two from 2MiB on")
    return size


class Setting(NamedTuple):
    """One setting: how its value is read, and what stands in the documentation.

    Attributes:
        parse: Gives the value that a text or an argument stands for.
        default: A value.
        allowed: What may be written.
        meaning: What it does.
        core: The arguments of ``oomph._C.configure`` that a value gives.
    """

    parse: Callable[[Any], Any]
    default: Any
    allowed: str
    meaning: str
    core: Core = lambda _: {}


def _choice(
    allowed: str, default: str, meaning: str, core: Core = lambda _: {}
) -> Setting:
    """A setting that is one of some words."""

    def parse(value: Any) -> str:
        if value not in allowed.split(", "):
            raise ValueError(f"{value!r} is not one of {allowed}")
        return str(value)

    return Setting(parse, default, allowed, meaning, core)


def _constant(argument: str, prefix: str, **others: str) -> Core:
    """The words, or others for them, name constants; several are joined by +."""

    def core(value: str) -> dict[str, Any]:
        from oomph import _C  # the table is read where nothing is built, too

        words = value.replace("-", "_").split("+")
        names = (others.get(word, word.upper()) for word in words)
        return {argument: sum(getattr(_C, f"{prefix}_{name}") for name in names)}

    return core


def _host_limit(value: str | int) -> dict[str, Any]:
    limit_bytes = host.default_limit_bytes() if value == "auto" else value
    return {"host_limit_bytes": limit_bytes, "host_page_max": host.page_max()}


def _device_limit(value: float | int | None) -> dict[str, Any]:
    return {
        "device_limit_bytes": value if isinstance(value, int) else 0,
        "device_limit_fraction": value if isinstance(value, float) else 0.0,
    }


SETTINGS: dict[str, Setting] = {
    "offload": _choice(
        "auto, off, on-oom, always",
        "auto",
        "what happens when no device memory is left; off: an error; on-oom: the block "
        "falls back to the host, and from the next step on oomph plans ahead; always: "
        "oomph plans ahead from the start; auto: on-oom, but off on a GPU that has no "
        "memory of its own "
        "([why](beside_others.md#where-cpu-and-gpu-share-one-memory))",
        _constant("offload", "OFFLOAD"),
    ),
    "recompute": _choice(
        "auto, always, off",
        "auto",
        "whether calls of modules run again in backward in place of keeping what they "
        "save; auto: where memory is short and that is faster than sending it to the "
        "host; always: also in the first step, before anything is known, so that no "
        "host memory is needed ([how](how_offload_works.md#what-is-recomputed)); with "
        "`offload:off`, auto is always if you write it, and off if you do not",
    ),
    "strict": _choice(
        "yes, no",
        "no",
        "yes: a block that would fall back to the host is an error; offload that is "
        "planned ahead goes on",
        lambda value: {"strict": value == "yes"},
    ),
    "required": _choice(
        "auto, yes, no",
        "auto",
        "what happens where oomph cannot start; yes: an error, also at `import torch`; "
        "no: PyTorch uses its own allocator, and the log says why; auto: yes for "
        "`oomph.install()`; for `OOMPH_CONF` and `oomph run` no, and oomph looks for a "
        "driver only when CUDA is first used; yes asks for no driver, so that scripts "
        "go on that use the CPU alone: without one, the first use of CUDA fails",
    ),
    "host_limit": Setting(
        _auto_or_size,
        "auto",
        "auto, a size",
        "the most host memory that a process uses in place of device memory; auto: "
        "half of what is available, divided among the processes that a launcher "
        "started on the node",
        _host_limit,
    ),
    "device_limit": Setting(
        _limit,
        None,
        "a size, or a fraction of the card such as 0.9",
        "the most device memory that a process uses, as if the card were smaller",
        _device_limit,
    ),
    "reserve": Setting(
        _auto_or_size,
        "auto",
        "auto, a size",
        "device memory left free for libraries that allocate their own, until an error "
        "would come; auto: 2 % of the card, at least 256 MiB",
        lambda value: (
            _constant("reserve_bytes", "RESERVE")(value)
            if value == "auto"
            else {"reserve_bytes": value}
        ),
    ),
    "plan": _choice(
        "on, off",
        "on",
        "whether oomph packs steps that repeat when memory is short",
        lambda value: {"plan": value == "on"},
    ),
    "promote": _choice(
        "on, off",
        "on",
        "whether parameters, gradients and optimizer state that were on the host for a "
        "whole step return to the device when it ends, if there is room",
        lambda value: {"promote": value == "on"},
    ),
    "batch_finder": _choice(
        "auto, off",
        "auto",
        "auto: while a batch finder of accelerate or Lightning runs, nothing is "
        "offloaded, so that it finds the batch that fits the device "
        "([how](how_offload_works.md#while-a-batch-finder-runs)); off: rescues let "
        "nearly any batch fit",
    ),
    "error": _choice(
        "brief, full",
        "brief",
        "how much `torch.OutOfMemoryError` says; full: all that `oomph.last_oom()` "
        "knows ([error texts](errors.md#memory-is-gone))",
    ),
    "leaks": _choice(
        "off, count, report, raise",
        "off",
        "whether oomph looks for memory that grows from step to step "
        "([leaks](leaks.md)); count: the log names leaks when the program ends; "
        "report: also as soon as one is found; raise: the step that finds one ends "
        "with `oomph.leaks.LeakError`",
    ),
    "guard": _choice(
        "off, unmap, sync, fill, unmap+fill, sync+fill",
        "off",
        "for debugging use after free ([guard](guard.md)); unmap: freed memory is "
        "unmapped, so that using it fails; sync: each free also waits for the GPU; "
        "fill: memory is filled with NaN",
        _constant("guard", "GUARD"),
    ),
    "host_pages": _choice(
        "auto, numa, host, pinned, off",
        "auto",
        "which kind of host memory is used; auto: the first that works",
        _constant("host_kind", "HOST", host="PLAIN"),
    ),
    "host_ahead": Setting(
        parse_size,
        256 << 20,
        "a size",
        "host memory that is prepared in advance, once any was needed",
        lambda value: {"host_ahead_bytes": value},
    ),
    "page": Setting(
        _page,
        "auto",
        "auto, a power of two from 2MiB on",
        "size of a physical page; auto: 2 MiB, or more where `host_limit` needs more "
        "pages than the system lets a process map",
        lambda value: {"page_bytes": 0 if value == "auto" else value},
    ),
}


class Options(TypedDict, total=False):
    """The arguments of :func:`oomph.install`, for type checkers and editors."""

    offload: str | None
    recompute: str | None
    strict: str | None
    required: str | None
    host_limit: str | int | None
    device_limit: str | float | None
    reserve: str | int | None
    plan: str | None
    promote: str | None
    batch_finder: str | None
    error: str | None
    leaks: str | None
    guard: str | None
    host_pages: str | None
    host_ahead: str | int | None
    page: str | int | None


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
            raise SettingsError(f"{pair!r} is not a setting; write key:value")
        if key in found:
            raise SettingsError(f"{key!r} is given twice")
        found[key] = value
    return check(found)


def check(values: Mapping[str, Any]) -> dict[str, Any]:
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
    values = dict(values)
    if values.get("offload") == "off":
        # Nothing leaves: what runs again must do so before a step can show its need.
        asked = values.get("recompute", "off")
        values["recompute"] = "always" if asked == "auto" else asked
    return {key: values.get(key, setting.default) for key, setting in SETTINGS.items()}


def for_core(values: dict[str, Any]) -> dict[str, Any]:
    """Turns complete settings into the arguments of ``oomph._C.configure``."""
    parts = (setting.core(values[key]) for key, setting in SETTINGS.items())
    return {name: value for part in parts for name, value in part.items()}


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
