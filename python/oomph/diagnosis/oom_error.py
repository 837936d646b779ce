"""Makes PyTorch's out-of-memory error explain itself.

The error is thrown in C++, by threads that have no GIL and must not wait for it. So the
core keeps what is needed (csrc/core/control/oom.c), and the explanation is added
when PyTorch makes the Python exception of it. If anything fails meanwhile, PyTorch's
text stays.
"""

from __future__ import annotations

import atexit
import threading
from typing import Any

from oomph import _C
from oomph.base.log import logger
from oomph.diagnosis.categories import BlockList
from oomph.diagnosis.diagnose import diagnose

_busy = threading.local()


def start() -> None:
    """Has ``torch.OutOfMemoryError`` explain itself until Python ends.

    Objects that are freed later may meet modules that Python has emptied by then.
    """
    import torch

    torch.OutOfMemoryError.__init__ = _init  # type: ignore[method-assign]
    atexit.register(lambda: delattr(torch.OutOfMemoryError, "__init__"))


def _init(self: Any, *arguments: Any) -> None:
    RuntimeError.__init__(self, *arguments)
    if len(arguments) != 1 or not isinstance(arguments[0], str):
        return
    report = explained(arguments[0])
    if report:
        self.args = (f"{arguments[0]}\n{report}",)


def explained(message: str) -> str:
    """What is to be said of the shortage that an error's message tells of.

    Returns:
        Some lines; "" if the message is not the core's, or the report failed.
    """
    if getattr(_busy, "now", False):
        return ""
    _busy.now = True
    try:
        snapshot = _C.take_shortage()
        if snapshot is None or not message.startswith(snapshot["message"]):
            return ""
        return _report(snapshot)
    except Exception:
        logger.debug("a shortage of memory could not be explained", exc_info=True)
        return ""
    finally:
        _busy.now = False


def _report(snapshot: dict[str, Any]) -> str:
    device = snapshot["device"]
    blocks = BlockList(device, snapshot.pop("census"))
    # The core had garbage collected, or says why not. To do so here would make the
    # error old for the collector, and what a circle through it holds live longer.
    return diagnose(snapshot, blocks, BlockList.take(device), frozenset()).text
