"""Reads traces, whoever wrote them."""

from __future__ import annotations

from pathlib import Path

from oomph.traces import format, rmm, snapshots
from oomph.traces.format import Trace, TraceError


def read(path: Path) -> Trace:
    """What a file says that a program asked for.

    Args:
        path: A trace of ``oomph run --trace``, a snapshot of PyTorch, or a log of RMM.

    Raises:
        TraceError: It is none of these, or is damaged.
    """
    try:
        data = format.file_bytes(path)
        if data.startswith(format.BEGIN):
            return format.parse(data)
        if snapshots.is_one(data):
            return snapshots.parse(data)
        if rmm.is_one(data):
            return rmm.parse(data)
        raise TraceError(
            "it is neither a trace of oomph run --trace, nor a snapshot of "
            "torch.cuda.memory._dump_snapshot(), nor a log of RMM (CSV with the "
            "columns Action, Pointer, Size and Stream)"
        )
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
