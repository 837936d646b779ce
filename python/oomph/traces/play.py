"""Asks PyTorch's allocator for all that a trace has: ``python -m oomph.traces.play``.

The file is one that ``oomph replay`` has written; it is read before CUDA is used.
"""

from __future__ import annotations

import sys
from pathlib import Path

from oomph import _extensions
from oomph.base import state
from oomph.steps import events
from oomph.traces import format
from oomph.traces.recording import STEP_ENDS


def main(path: str) -> None:
    """Plays a trace, and says how fast.

    Raises:
        TraceError: Its records are damaged.
        torch.OutOfMemoryError: It does not fit.
    """
    import torch

    trace = format.parse(format.file_bytes(Path(path)))
    play = _extensions.load("_torch", torch.__version__).play_trace
    for device in range(trace.devices):
        torch.cuda.synchronize(device)  # the context is there, as kernels need it
    try:
        count, seconds = play(trace.records, _mark)
    except ValueError as error:
        raise format.TraceError(str(error)) from None
    print(f"{count} events in {seconds:.6f} s")


def _mark(which: int) -> None:
    if which == STEP_ENDS and state.is_installed():
        events.step()


if __name__ == "__main__":
    main(sys.argv[1])
