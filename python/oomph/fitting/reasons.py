"""Why a script came to no answer, as a sentence."""

from __future__ import annotations

import resource

from oomph.base.sizes import format_size
from oomph.fitting.process.record import Record


def reason(record: Record) -> str:
    """Why there is no answer, where memory is not the reason.

    Args:
        record: Of the run that shows it.
    """
    if record.came_through:
        return (
            "the script itself used no GPU. Processes that it started did "
            f"({record.unseen}), but they left no record, as if they were killed. Ask "
            "about what one of them runs; for a program that uses several GPUs, add "
            "--world COUNT"
        )
    if record.ending == "time" and not record.used_gpu:
        return (
            "the time was up before the script used a GPU: what it does before, such "
            "as preparing data, takes longer. Give it more time with --seconds, or "
            "less to prepare; what it has prepared serves for all cards"
        )
    if record.ending == "time":
        return (
            "the script took too long. Perhaps a loop waits for a value, which is 0 on "
            "a simulated card; otherwise give it more time with --seconds"
        )
    said = f"the script failed with exit code {record.exit_code}{_limit()}"
    if record.ending == "error" and record.allocated_bytes > 0:
        said += (
            " (tensors hold no values here; if it does not fail on a GPU, that may be "
            "why: oomph run --simulate CARD --values runs it with them)"
        )
    return said


def _limit() -> str:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    return (
        f" (this process may use {format_size(limit)} of addresses (ulimit -v), which "
        "PyTorch and the card share: raise that limit first)"
    )
