"""Records what this process asks of PyTorch's allocator, whichever that is."""

from __future__ import annotations

import atexit
import itertools
import os
from pathlib import Path
from typing import IO, Any

from oomph import _extensions
from oomph.base import log, state
from oomph.memory import sites
from oomph.steps import events
from oomph.traces import format

STEP_ENDS, OPTIMIZER_BEGINS, OPTIMIZER_ENDS = 1, 2, 3


def start(path: Path) -> None:
    """Records from the first use of CUDA until the process ends.

    Args:
        path: The file, which is begun anew.

    Raises:
        RuntimeError: oomph was built for another PyTorch.
    """
    import torch

    trace = _extensions.load("_torch", torch.__version__)
    file = open(path, "wb", buffering=0)  # noqa: SIM115 - until the process ends
    file.write(format.head({"torch": torch.__version__}))
    if not state.is_installed():
        sites.start()
        events.follow(torch)
    events.before_optimizer.append(lambda _: trace.mark_trace(OPTIMIZER_BEGINS))
    events.after_optimizer.append(lambda _: trace.mark_trace(OPTIMIZER_ENDS))
    events.ended.append(lambda: trace.mark_trace(STEP_ENDS))
    torch.cuda._lazy_call(  # type: ignore[no-untyped-call]
        lambda: trace.begin_trace(file.fileno())
    )
    atexit.register(_end, trace, file, os.getpid())


def _end(trace: Any, file: IO[bytes], pid: int) -> None:
    if os.getpid() != pid:  # a fork's records are not the program's
        return
    import torch

    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if not is_used:
        file.write(b"\0")
    elif trace.end_trace() < 0:
        log.logger.warning("the trace %s could not be written to its end", file.name)
        return
    devices = torch.cuda.device_count() if is_used else 1
    cards = [torch.cuda.get_device_name(device) for device in range(devices)]
    file.write(format.tail({"devices": devices, "cards": cards, "sites": _sites()}))


def _sites() -> dict[str, list[Any]]:
    """File, line and function of all lines that were seen to allocate."""
    found: dict[str, list[Any]] = {}
    for number in itertools.count(1):
        try:
            site = sites.resolve(number)
        except (ValueError, RuntimeError):  # there are no more
            break
        if site is not None:
            found[str(number)] = [site.file, site.line, site.function]
    return found
