"""The watch of this process: it begins, and reports what it found."""

from __future__ import annotations

from oomph.base import log, state
from oomph.leaks.findings import LeakError, Report
from oomph.leaks.watching import Watch

_STEPS_MIN = 5  # to say that nothing leaks
_last: Watch | None = None


def watch(action: str = "count") -> Watch:
    """Begins to watch for leaks, until the process ends or as a context manager.

    A step ends with each step of an optimizer, or with :func:`oomph.step`; where there
    is no optimizer at all, with each backward pass.
    docs/leaks.md says what is found, and how.

    Args:
        action: What happens when a leak is found. ``count``: the log says it when the
            process ends; ``report``: the log says it at once; ``raise``: the
            optimizer's ``step()`` raises :class:`LeakError`.

    Returns:
        The watch, which has begun. As a context manager it ends with the block.

    Raises:
        RuntimeError: oomph is not installed, so it does not know when steps end.
        ValueError: The action is none of these.

    Example:
        >>> with oomph.leaks.watch() as watched:
        ...     train(steps=5)
        >>> print(watched.report())
        no leak was found in 5 steps
    """
    global _last
    if not state.is_installed():
        raise RuntimeError(
            "oomph is not installed, so it does not know of steps: call "
            "oomph.install() before CUDA is used"
        )
    _last = Watch(action).start()
    log.leaks_found = _last.final_report
    return _last


def report() -> Report:
    """Gives what the watch that began last has found so far.

    Returns:
        A snapshot; ``print()`` shows its text, ``as_dict()`` is for JSON.

    Raises:
        RuntimeError: No watch has begun, or it has ended by an error of its own.

    Example:
        >>> for finding in oomph.leaks.report().findings:
        ...     print(finding.verdict, finding.line, finding.growth_bytes)
    """
    if _last is None:
        raise RuntimeError(
            "nothing was watched for leaks: call oomph.leaks.watch(), or set "
            "leaks:count"
        )
    return _last.report()


def assert_no_leaks() -> None:
    """Raises if the watch that began last has found a leak.

    Five steps are usually enough to find a leak that grows with every step.

    Raises:
        LeakError: A leak was found; the text is the report. An ``AssertionError``.
        RuntimeError: No watch has begun, it ended by an error of its own, or it saw
            fewer than five steps.

    Example:
        >>> with oomph.leaks.watch():
        ...     train(steps=5)
        >>> oomph.assert_no_leaks()
    """
    found = report()
    if found.findings:
        raise LeakError(found.text)
    if found.steps < _STEPS_MIN:
        raise RuntimeError(
            f"{found.steps} steps are too few to say that nothing leaks; "
            f"watch {_STEPS_MIN} or more"
        )
