"""Watching a program for leaks, step by step.

At the end of each step two numbers are read: how many blocks are allocated, and how
many bytes. Twice, early on, all tensors are looked at. Only once the numbers grow is
more done: tensors are looked at for some steps, those that stay are traced to what
holds them, small blocks learn their lines. Then all of it is switched off again.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from oomph import _C, _torch
from oomph.base import log, state
from oomph.leaks import graphs, last_error, replaced, verdicts
from oomph.leaks.backward import Backward
from oomph.leaks.evaluation import Evaluation
from oomph.leaks.findings import Finding, LeakError, Report
from oomph.leaks.gradients import Gradients
from oomph.leaks.growth import Counts, Growth
from oomph.leaks.hooks import Hooks
from oomph.leaks.inventory import Inventory
from oomph.leaks.source import user_files, user_line
from oomph.steps import events

ACTIONS = ("count", "report", "raise")
_FIRST_SCAN, _SECOND_SCAN = 2, 5  # steps
_SCANS = 4  # of a look: three steps to grow in
_LONG = 16  # steps a window: what grows for three of these grows whatever the code says


class _Look:
    """A close look: some scans, a period apart."""

    def __init__(self, period: int, inventory: Inventory) -> None:
        self.period = period
        self.inventory = inventory
        self.sites: list[verdicts.Sites] = []
        self._wait = 0
        self._min_bytes = _torch.set_site_min_bytes(1)  # small blocks, too

    def is_due(self) -> bool:
        """Whether this step's end is one to scan at."""
        due = self._wait == 0
        self._wait = self.period - 1 if due else self._wait - 1
        return due

    def scan(self) -> list[torch.nn.Module]:
        """Looks at everything; gives all modules."""
        self.sites.append(_live_sites())
        return self.inventory.scan()

    def has_ended(self) -> bool:
        """Whether it has seen enough."""
        return self.inventory.scans >= _SCANS

    def end(self) -> None:
        """Small blocks need their lines no more."""
        _torch.set_site_min_bytes(self._min_bytes)


def _live_sites() -> verdicts.Sites:
    """Blocks and bytes by the line that allocated them, backward's with forward's."""
    found: verdicts.Sites = {}
    for device in range(torch.cuda.device_count()):
        for number, size_bytes, count in _C.live_sites(device):
            site = number & ~_C.SITE_INFERRED
            blocks, known = found.get(site, (0, 0))
            found[site] = blocks + count, known + size_bytes
    return found


def _counts() -> Counts:
    blocks = size_bytes = 0
    for device in range(torch.cuda.device_count()):
        now = _C.stats(device)
        blocks += now["allocation.all.current"]
        size_bytes += now["allocated_bytes.all.current"]
    return Counts(blocks, size_bytes)


class Watch:
    """A watch for leaks, and a context manager. :func:`watch` begins one.

    Attributes:
        steps: Steps that have ended during the watch.
        findings: The mistakes found so far.

    Example:
        >>> with oomph.leaks.watch() as watched:
        ...     train(steps=5)
        >>> watched.steps
        5
    """

    def __init__(self, action: str = "count") -> None:
        if action not in ACTIONS:
            raise ValueError(f"{action!r} is not one of {', '.join(ACTIONS)}")
        self.action = action
        self.steps = 0
        self.findings: list[Finding] = []
        self._growth = Growth()
        self._first = Inventory()
        self._look: _Look | None = None
        self._starts: deque[int] = deque([graphs.now()], maxlen=3)
        self._evaluation = Evaluation()
        self._backward = Backward(self._evaluation.note_backward)
        self._hooks = Hooks()
        self._gradients: weakref.WeakKeyDictionary[Any, Gradients] = (
            weakref.WeakKeyDictionary()
        )
        self._running = False

    # ---- Beginning and end

    def start(self) -> Watch:
        """Begins to watch."""
        if not self._running:
            self._running = True
            self._backward.start()
            self._evaluation.start()
            for tells, told in self._heard():
                tells.append(told)
        return self

    def stop(self) -> None:
        """Ends the watch; what it found stays. Has no effect the second time.

        Example:
            >>> watched = oomph.leaks.watch()
            >>> watched.stop()
        """
        if not self._running:
            return
        self._running = False
        for tells, told in self._heard():
            tells.remove(told)
        self._evaluation.stop()
        self._backward.stop()
        self._hooks.stop()
        for gradients in self._gradients.values():
            gradients.stop()
        if self._look is not None:
            self._look.end()
            self._look = None

    def _heard(self) -> list[tuple[list[Any], Callable[..., None]]]:
        """Who tells it of what, and whom."""
        return [
            (events.after_optimizer, self.after_optimizer),
            (events.ended, self.end_step),
            (log.more_at_exit, self._finish),
        ]

    def __enter__(self) -> Watch:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def report(self) -> Report:
        """Gives what was found so far.

        Returns:
            A snapshot; ``print()`` shows its text, ``as_dict()`` is for JSON.

        Example:
            >>> print(watched.report())
            no leak was found in 5 steps
        """
        return Report(self.steps, list(self.findings), self._growth.step_bytes())

    def _finish(self) -> None:
        """The process ends: what is still watched is told."""
        if self.findings:
            log.logger.warning("%s", self.report().text)

    # ---- Steps

    def after_optimizer(self, optimizer: Any) -> None:
        """An optimizer has taken a step."""
        gradients = self._gradients.setdefault(optimizer, Gradients())
        self._tell(_some(gradients.end_step(optimizer, user_line())))

    def end_step(self) -> None:
        """A step has ended."""
        self.steps += 1
        self._tell(self._look_around())

    def _look_around(self) -> list[Finding]:
        found = self._evaluation.end_step()
        kept = _some(self._backward.end_step())
        period = self._growth.add(_counts())
        if self._look is None and period is not None:
            self._look = self._begin_look(period)
        found += self._scan()
        if not any(finding.verdict == "graph retained" for finding in found):
            found += kept
        self._starts.append(graphs.now())
        return found

    def _begin_look(self, period: int) -> _Look:
        """The first scan is of use if it was just one period ago."""
        fresh = period == 1 and self.steps == _FIRST_SCAN + 1
        return _Look(period, self._first if fresh else Inventory())

    def _scan(self) -> list[Finding]:
        """Looks at all tensors and modules if anything calls for it."""
        look = self._look if self._look is not None and self._look.is_due() else None
        hooks = self._hooks.end_step()
        early = self.steps in (_FIRST_SCAN, _SECOND_SCAN)
        if not (look or hooks or early):
            return []
        inventory = self._first if self.steps == _FIRST_SCAN else Inventory()
        modules = look.scan() if look else inventory.scan()
        found = _some(self._hooks.count(modules)) if hooks else []
        if early:
            found += replaced.find(list(self._gradients), modules, user_line())
            found += _some(last_error.find())
        if (look and look.has_ended()) or self.steps == _SECOND_SCAN:
            tensors = (look.inventory if look else inventory).tensors()
            found += self._judge(look, tensors)
        return found

    def _judge(self, look: _Look | None, tensors: list[torch.Tensor]) -> list[Finding]:
        """What the last scan shows, and the scans before it, if it ended a look."""
        judge = verdicts.Judge(user_files())
        growth_bytes = self._growth.step_bytes()
        found = judge.chained(tensors, list(self._starts), growth_bytes)
        if look is None or not look.has_ended():
            return found
        judged = [] if found else judge.joined(look.sites, look.period, tensors)
        tensors.clear()
        groups = look.inventory.growing(_SCANS)
        for group in groups if not found else ():
            judged += judge.group(group)
        found += [
            each.finding
            for each in judged
            if each.limit == "" or (each.limit == "unknown" and look.period >= _LONG)
        ]
        lines = verdicts.growing_lines(look.sites)
        if found:
            found = verdicts.explain(found, lines, growth_bytes)
        elif lines and not groups and look.period > 1:
            found = [verdicts.unheld(lines, growth_bytes)]
        self._growth.misled(look.period)
        look.end()
        self._look = None
        return found

    def _tell(self, found: list[Finding]) -> None:
        """Adds what is new, and says it as asked."""
        known = {(finding.verdict, finding.line) for finding in self.findings}
        new = []
        for finding in found:
            if (finding.verdict, finding.line) not in known:
                known.add((finding.verdict, finding.line))
                new.append(finding)
        self.findings += new
        if not new or self.action == "count":
            return
        text = Report(self.steps, new).text
        if self.action == "raise":
            raise LeakError(text)
        log.logger.warning("%s", text)


def _some(finding: Finding | None) -> list[Finding]:
    return [] if finding is None else [finding]


# ---- The process

_last: Watch | None = None


def watch(action: str = "count") -> Watch:
    """Begins to watch for leaks, until the process ends or as a context manager.

    A step ends with each step of an optimizer, or with :func:`oomph.step`.
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
    log.leaks_found = report
    return _last


def report() -> Report:
    """Gives what the watch that began last has found so far.

    Returns:
        A snapshot; ``print()`` shows its text, ``as_dict()`` is for JSON.

    Raises:
        RuntimeError: No watch has begun.

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
        RuntimeError: No watch has begun, or it saw fewer than five steps.

    Example:
        >>> with oomph.leaks.watch():
        ...     train(steps=5)
        >>> oomph.assert_no_leaks()
    """
    found = report()
    if found.findings:
        raise LeakError(found.text)
    if found.steps < _SECOND_SCAN:
        raise RuntimeError(
            f"{found.steps} steps are too few to say that nothing leaks; "
            f"watch {_SECOND_SCAN} or more"
        )
