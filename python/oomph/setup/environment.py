"""What the environment asks of a process that imports PyTorch.

``OOMPH_CONF``
    Settings; oomph is installed.
``OOMPH_SIMULATE``
    A card; the GPU is simulated (loaded when Python started), which is said once.
``OOMPH_STATS``
    Set by ``oomph run --stats``: where statistics go when the process ends.
``OOMPH_TRACE``
    Set by ``oomph run --trace``: where the trace goes, as for ``OOMPH_STATS``.
``OOMPH_HOST_AVAILABLE``
    Set by a process with oomph for its children: see :data:`oomph.memory.host.BASE`.
``OOMPH_NATIVE_LIMIT``
    Set by ``oomph run --device-limit`` without oomph: a limit in bytes for PyTorch's
    own allocator.
"""

from __future__ import annotations

import atexit
import json
import os
from pathlib import Path
from typing import Any

from oomph import _C, settings, simulate
from oomph.base import log, ranks, state
from oomph.memory import sites
from oomph.memory.stats import stats
from oomph.setup import installation, missing_card
from oomph.simulate import lines, ordinals, world

STATS = "OOMPH_STATS"
TRACE = "OOMPH_TRACE"
NATIVE_LIMIT = "OOMPH_NATIVE_LIMIT"
_SAID = "OOMPH_SIMULATE_SAID"


def apply() -> None:
    """Does what the environment asks for. Called at the end of ``import torch``."""
    card = simulate.card_in_use()
    if card is not None:
        simulate.prepare_torch()
        sites.start()
        lines.connect(_C.line_writer(), sites.main_line)
        if world.is_alone():
            world.install()
        _say_once(os.environ[simulate.VARIABLE])
        ordinals.follow(os.environ[simulate.VARIABLE])
    else:
        missing_card.report()
    if os.environ.get(STATS):
        _write_stats_at_exit(os.environ[STATS])
    if os.environ.get(NATIVE_LIMIT):
        _limit_native(int(os.environ[NATIVE_LIMIT]))
    values = settings.from_environment()
    if values is not None:
        installation.install(**values)
    trace = _own_path(os.environ.get(TRACE, ""))
    if trace is not None:
        from oomph.traces import recording

        recording.start(trace)


def said(card: str) -> dict[str, str]:
    """Variables that keep the banner of a card from being logged."""
    return {_SAID: card}


def mark_as_said(card: str) -> None:
    """Has the banner of a card logged neither here nor in children."""
    os.environ.update(said(card))


def _say_once(card: str) -> None:
    """Logs the banner in the first process; its children are quiet."""
    if os.environ.get(_SAID) != card:
        mark_as_said(card)
        log.logger.warning(simulate.banner(card))


def _limit_native(limit_bytes: int) -> None:
    """Limits PyTorch's own allocator on every device, once CUDA starts."""
    import torch

    def limit() -> None:
        for device in range(torch.cuda.device_count()):
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(
                min(1.0, limit_bytes / total), device
            )

    torch.cuda._lazy_call(limit)  # type: ignore[no-untyped-call]


def _own_path(wanted: str) -> Path | None:
    """Where this process writes: the file asked for, or one of its rank beside it.

    The process that was started writes the file. Ranks write beside it, whether it has
    started them or each was started as it; other children (data loading workers) write
    nothing.
    """
    pid, _, name = wanted.partition(":")
    if not name:
        return None
    import multiprocessing  # as PyTorch does

    if multiprocessing.parent_process() is not None:
        return None
    path, rank = Path(name), ranks.rank()
    if rank is not None:
        return path.with_suffix(f".rank{rank}{path.suffix}")
    return path if int(pid) == os.getpid() else None


def _write_stats_at_exit(wanted: str) -> None:
    path = _own_path(wanted)
    if path is None:
        return
    pid = os.getpid()

    def write() -> None:
        if os.getpid() != pid:
            return
        try:
            path.write_text(json.dumps(collect_stats(), indent=1) + "\n")
        except OSError as error:
            log.logger.error("statistics cannot be written: %s", error)

    atexit.register(write)


def collect_stats() -> dict[str, dict[str, Any]]:
    """Statistics of every device, by index: oomph's, or those of PyTorch's allocator.

    For PyTorch's allocator ``device_bytes`` is what it has reserved.
    """
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return {}
    found: dict[str, dict[str, Any]] = {}
    watched = log.leaks_found
    leaks = {} if watched is None else {"leaks": watched().as_dict()}
    for device in range(torch.cuda.device_count()):
        if state.is_installed():
            found[str(device)] = {**stats(device), **leaks}
        else:
            found[str(device)] = _native_stats(torch.cuda.memory_stats(device))
    return found


def _native_stats(metrics: dict[str, Any]) -> dict[str, Any]:
    return {
        "allocator": "native",
        **metrics,
        "device_bytes": metrics.get("reserved_bytes.all.current", 0),
        "device_bytes_peak": metrics.get("reserved_bytes.all.peak", 0),
        "host_bytes": 0,
        "host_bytes_peak": 0,
        "rescues": 0,
    }
