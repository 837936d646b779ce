"""Why a script came to no answer, or to none of its own on a card, as sentences."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from oomph.base.sizes import format_size
from oomph.fitting.limit import PATIENCE
from oomph.fitting.measuring import Way
from oomph.fitting.process.record import Record

if TYPE_CHECKING:
    from oomph.fitting.answer import Answer
    from oomph.fitting.varying import Largest


def reason(record: Record) -> str:
    """Why there is no answer, where memory is not the reason.

    Args:
        record: Of the run that shows it.
    """
    if record.kept_file:
        return (
            "the script was stopped before its first step, as it would have changed "
            f"{record.kept_file}, which was there before. Ask about a copy of the "
            "script in another folder, or move that file away"
        )
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


# ---- Of cards


def _names(found: Iterable[Answer | Largest]) -> str:
    """The cards that answers are for, each once."""
    return ", ".join(dict.fromkeys(each.card.name for each in found))


def caught(found: Sequence[Answer] | Sequence[Largest]) -> list[str]:
    """On which cards the script went on with less, as it seems."""
    names = _names(each for each in found if each.caught)
    if not names:
        return []
    return [
        f"On {names} the script caught an out-of-memory error and went on, perhaps "
        "with less."
    ]


def failed(found: Sequence[Answer]) -> list[str]:
    """Why the script fails on a card, where memory is not what it complains of."""
    failed = [each for each in found if each.failed]
    if not failed:
        return []
    said = failed[0].record.output.splitlines()[-1:]
    return [
        f"On {_names(failed)} the script fails, but not with an out-of-memory error: "
        f"{''.join(said) or 'it printed nothing'}. With more memory it succeeds."
    ]


def gave_up(found: Sequence[Answer]) -> list[str]:
    """Where a run was not waited for."""
    slow = [each for each in found if each.gave_up]
    rescued = _names(each for each in slow if each.way is Way.RESCUE)
    others = _names(each for each in slow if each.way is not Way.RESCUE)
    ended = (
        f"was ended once it had taken {PATIENCE} times as long as the one without a "
        "limit"
    )
    lines = []
    if rescued:
        lines.append(
            f"On {rescued} the run with oomph {ended}: so little fits there that "
            "nearly all of it would move or be recomputed."
        )
    if others:
        lines.append(
            f"On {others} a run without the host {ended}: perhaps the script waits for "
            "memory, or tries again and again."
        )
    return lines


def late(not_run: Sequence[str]) -> list[str]:
    """What there was no time for."""
    if not not_run:
        return []
    return [
        "The time for the question was up (--within gives it more), so these were not "
        f"run, or not to their end: {'; '.join(not_run)}."
    ]
