"""Makes PyTorch's out-of-memory error explain itself.

The error is thrown in C++, by threads that have no GIL and must not wait for it. So the
core keeps what is needed (csrc/core/control/oom.c), and the explanation is added
when PyTorch makes the Python exception of it. What the whole step would come to takes
seconds to find out: that waits until somebody reads the error's text. If anything fails
meanwhile, PyTorch's text stays.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

from oomph import _C
from oomph.base import state
from oomph.base.log import logger

# What explains an error is imported when there is one.
if TYPE_CHECKING:
    from types import FrameType

    from oomph.diagnosis.diagnose import Case
    from oomph.diagnosis.diagnosis import Diagnosis

_busy = threading.local()
_last: Diagnosis | None = None
_forecasts = True


def start() -> None:
    """Has ``torch.OutOfMemoryError`` explain itself until Python ends.

    Objects that are freed later may meet modules that Python has emptied by then.
    """
    import torch

    torch.OutOfMemoryError.__init__ = _init  # type: ignore[method-assign]
    torch.OutOfMemoryError.__str__ = _str  # type: ignore[method-assign]
    torch.OutOfMemoryError.__reduce__ = _reduce  # type: ignore[method-assign]
    atexit.register(_stop)


def _stop() -> None:
    import torch

    del torch.OutOfMemoryError.__init__
    del torch.OutOfMemoryError.__str__
    del torch.OutOfMemoryError.__reduce__


def set_forecasts(on: bool) -> None:
    """Whether errors say what the whole step would come to, and what helps with it."""
    global _forecasts
    _forecasts = on


def _init(self: Any, *arguments: Any) -> None:
    RuntimeError.__init__(self, *arguments)
    if len(arguments) != 1 or not isinstance(arguments[0], str):
        return
    with _Once() as once:
        snapshot = _C.take_oom() if once else None
        if snapshot is None or _C.is_attempt():
            return
        if not arguments[0].startswith(snapshot["message"]):
            return
        case = _case(snapshot)
        self.args = (f"{arguments[0]}\n{_text_of(case)}",)
        if _forecasts:
            self._oomph_case = case, arguments[0]
            _explain_before_moves()
        from oomph.diagnosis import kept_errors

        kept_errors.note(self, case.where)


def _explain_before_moves() -> None:
    """Has an error explain itself before modules move while it is handled.

    Some frameworks take the model to the CPU before they raise the error again: from
    then on a step of it is another one.
    """
    import torch

    module: Any = torch.nn.Module
    original = module._apply
    if getattr(original, "oomph_waits", False):
        return

    @functools.wraps(original)
    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        if module._apply is apply:
            module._apply = original
        str(sys.exc_info()[1])
        return original(self, *args, **kwargs)

    apply.oomph_waits = True  # type: ignore[attr-defined]
    module._apply = apply


def _str(self: Any) -> str:
    """Its text, with what the whole step would come to."""
    if _is_on_its_way(sys._getframe().f_back):
        return RuntimeError.__str__(self)
    case, message = self.__dict__.pop("_oomph_case", (None, ""))
    if case is not None and self.__traceback__ is not None:
        with _Once() as once:
            if once:
                with contextlib.closing(
                    case.with_forecast(self.__traceback__)
                ) as whole:
                    self.args = (f"{message}\n{_text_of(whole)}",)
    return RuntimeError.__str__(self)


def _is_on_its_way(reader: FrameType | None) -> bool:
    """Whether autograd's thread reads the text, as it takes the error to the caller's.

    No function of the program has called it, and who waits for that thread is not yet
    in the traceback.
    """
    return reader is None and threading.get_ident() != threading.main_thread().ident


def _reduce(self: Any) -> Any:
    """To be pickled: with the text as it is read."""
    from oomph.diagnosis import kept_errors

    str(self)
    return type(self), self.args, kept_errors.state_of(self)


def _text_of(case: Case) -> str:
    """What the error says."""
    global _last
    _last = case.diagnosis()
    return _last.text if state.settings()["error"] == "full" else _last.brief


def last_oom() -> Diagnosis | None:
    """What is known of the last ``torch.OutOfMemoryError``.

    Returns:
        The diagnosis, of which the error says the most important; ``print()`` shows
        all of it. None: there was no such error.

    Example:
        >>> oomph.last_oom() is None  # nothing has failed
        True
    """
    return _last


class _Once:
    """Not within itself; what fails in it is logged, and goes no further."""

    def __enter__(self) -> bool:
        self._is_first = not getattr(_busy, "now", False)
        _busy.now = True
        return self._is_first

    def __exit__(self, kind: Any, error: Any, _: Any) -> bool:
        if self._is_first:
            _busy.now = False
        if isinstance(error, Exception):
            logger.debug("a shortage of memory could not be explained", exc_info=error)
            return True
        return False


def _case(snapshot: dict[str, Any]) -> Case:
    from oomph.diagnosis.categories import BlockList
    from oomph.diagnosis.diagnose import Case

    device = snapshot["device"]
    blocks = BlockList(device, snapshot.pop("block_list"))
    # The core had garbage collected, or says why not. To do so here would make the
    # error old for the collector, and what a circle through it holds live longer.
    return Case.look(snapshot, blocks, BlockList.take(device), frozenset())
