"""Watching a program for leaks, step by step.

What grows is found by :mod:`oomph.leaks.detector`, in steps; in calls of a model where
no steps come; and in equal times where neither does. Mistakes that grow nothing, or
that have a sign of their own, are found by what is asked here in turn: hooks,
gradients, backward passes, evaluation.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from oomph import _C
from oomph.base import collector, log
from oomph.holders import search
from oomph.holders.lines import user_line
from oomph.leaks import last_error, replaced
from oomph.leaks.backward import Backward
from oomph.leaks.calls import Calls
from oomph.leaks.clock import Clock
from oomph.leaks.detector import FIRST_SCAN, SECOND_SCAN, Detector
from oomph.leaks.evaluation import Evaluation
from oomph.leaks.findings import LEAKS, Finding, LeakError, Report, merged, without
from oomph.leaks.gradients import Gradients
from oomph.leaks.hooks import Hooks
from oomph.steps import events

ACTIONS = ("count", "report", "raise")
_CERTAIN_STEPS = 60  # of growth, after which it is a leak
_CERTAIN_CALLS = 512  # of an evaluation, say, that may free all at its end
_CERTAIN_TIMES = 480  # two minutes of them
_PASSES_MIN = 3  # of backward, without a step: whether there is an optimizer is asked
_CALLS_MIN = 8  # of a model without gradients, and no step, before calls are rounds
_CALLS_WITH_GRADIENTS_MIN = 64  # more than most steps accumulate
_CALLS_NO_OPTIMIZER_MIN = 24  # where there is none: a simulation, a forgotten no_grad


class Watch:
    """A watch for leaks, and a context manager. :func:`oomph.leaks.watch` begins one.

    Attributes:
        steps: Steps that have ended during the watch.

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
        self._found: list[Finding] = []  # all but what grows
        self._reported: dict[Any, str] = {}  # how certain it was when it was said
        self._ended = False
        self._failure: Exception | None = None  # of the watch's own work
        self._backward = Backward(
            lambda: self._evaluation.note_backward(), self._end_backward
        )
        self._passes = 0  # backward ones
        self._by_hand: bool | None = None  # whether these end steps; None: not known
        self._has_optimizer: bool | None = None  # as calls asked; None: they did not
        self._by_steps = self._detector(_CERTAIN_STEPS)
        self._by_calls: Detector | None = None
        self._by_times: Detector | None = None
        self._has_only_time = True  # no step, and no call of a model
        self._clock = Clock(self._end_time)
        self._calls = Calls(self._end_times, self._end_call)
        self._calls_since_step = 0
        self._calls_looked_at = 0  # the most between two steps
        self._evaluation = Evaluation()
        self._hooks = Hooks()
        self._gradients: weakref.WeakKeyDictionary[Any, Gradients] = (
            weakref.WeakKeyDictionary()
        )
        self._running = False
        self._lock = threading.RLock()  # steps and calls end in any thread
        search.hide(self)  # it knows of places in which it has seen things

    def _detector(self, certain_rounds: int) -> Detector:
        return Detector(certain_rounds, lambda: self._backward.created)

    @property
    def findings(self) -> list[Finding]:
        """The mistakes found so far, and what grows; what has ended to grow is gone."""
        grown = self._by_steps.findings(self._ended)
        if self._by_calls is not None:
            by_calls = self._by_calls.findings(self._ended)
            grown += (replace(finding, per="call") for finding in by_calls)
        if self._by_times is not None:
            by_times = self._by_times.findings(self._ended)
            rate = self._clock.rate(*self._by_times.looked_at)
            grown += (_each_second(finding, rate) for finding in by_times)
        lines = {(finding.verdict, finding.line) for finding in grown}
        found = [f for f in self._found if (f.verdict, f.line) not in lines]
        gradients = [f for f in found if f.verdict == "zero_grad missing"]
        grown = without(grown, sum(f.growth_bytes for f in gradients))
        return [*found, *merged(grown)]

    # ---- Beginning and end

    def start(self) -> Watch:
        """Begins to watch."""
        if not self._running:
            self._running = True
            self._backward.start()
            self._evaluation.start()
            self._calls.start()
            self._clock.start()
            for listeners, listener in self._subscriptions():
                listeners.append(listener)
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
        self.finish()
        for listeners, listener in self._subscriptions():
            listeners.remove(listener)
        for each in (self._evaluation, self._calls, self._backward, self._hooks):
            each.stop()
        for gradients in self._gradients.values():
            gradients.stop()

    def _subscriptions(self) -> list[tuple[list[Any], Callable[..., None]]]:
        """The lists of listeners that it joins, with what they are to call."""
        return [
            (events.after_optimizer, self.after_optimizer),
            (events.ended, self._end_marked_step),
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

        Raises:
            RuntimeError: The watch has ended by an error of its own.

        Example:
            >>> print(watched.report())
            no leak was found in 5 steps
        """
        if self._failure is not None:
            raise RuntimeError(
                f"watching for leaks ended after {self.steps} steps, as oomph itself "
                "failed: please report this with the error above"
            ) from self._failure
        return self._report(self.findings)

    def final_report(self) -> Report:
        """Gives it as the process ends: what was found until then, whatever failed."""
        self.finish()
        return self._report(self.findings)

    def _report(self, findings: list[Finding]) -> Report:
        by, calls, seconds = self._by_steps, self._calls_since_step, 0.0
        if self._by_times is not None:
            by, seconds = self._by_times, self._clock.seconds
        return Report(self.steps, findings, by.growth_bytes, calls, seconds)

    def finish(self) -> None:
        """No more will be seen: what grew until now is judged by that."""
        self._clock.stop()
        self._ended = True
        for by in (self._by_steps, self._by_calls, self._by_times):
            if by is not None:
                by.stop()

    def _finish(self) -> None:
        """The process ends: what is still watched is reported."""
        self.finish()
        if self.findings:
            log.asked_for(self.report().text)

    @contextlib.contextmanager
    def _own_work(self) -> Iterator[None]:
        """What fails here is not the program's fault: it goes on, the watch ends."""
        try:
            yield
        except Exception as error:
            log.logger.exception(
                "watching for leaks has ended, as oomph itself failed; the program "
                "goes on. Please report this"
            )
            self._failure = error.with_traceback(None)  # which has the program's frames
            for by in filter(None, (self._by_steps, self._by_calls, self._by_times)):
                with contextlib.suppress(Exception):  # which may fail for the same
                    by.stop()
            self._by_steps = self._detector(_CERTAIN_STEPS)
            self._by_calls = self._by_times = None
            self.stop()

    # ---- Steps

    def after_optimizer(self, optimizer: Any) -> None:
        """An optimizer has taken a step."""
        with self._own_work():
            gradients = self._gradients.setdefault(optimizer, Gradients())
            self._note(_some(gradients.end_step(optimizer, user_line())))

    def _end_marked_step(self) -> None:
        """An optimizer or the program says that a step has ended."""
        if self._by_hand:  # those before were others
            self._by_steps.stop()
            self._by_steps = self._detector(_CERTAIN_STEPS)
        self._by_hand = False
        self.end_step()

    def _end_backward(self) -> None:
        """A backward pass has ended: a step, too, if there is no optimizer at all."""
        self._passes += 1
        self._end_times()
        if self._by_hand is None and self._passes == _PASSES_MIN:
            self._by_hand = not _has_optimizer()
        if self._by_hand:
            self.end_step()

    def end_step(self) -> None:
        """A step has ended."""
        self.steps += 1
        self._end_times()
        with self._own_work(), self._lock, collector.paused():
            self._look_around()
        self._calls_since_step = 0
        self._report_new()

    def _look_around(self) -> None:
        if self._by_calls is not None:
            self._by_calls.stop()
            self._by_calls = None
            self._calls_looked_at = max(self._calls_looked_at, self._calls_since_step)
        self._note(self._evaluation.end_step())
        self._note(_some(self._backward.end_step()))
        hooks = self._hooks.end_step()
        if self._by_steps.end_round(scan=hooks):
            self._look_at(self._by_steps.modules, hooks)
            self._by_steps.modules.clear()

    def _look_at(self, modules: list[Any], hooks: bool) -> None:
        """All modules there are."""
        if hooks:
            self._note(_some(self._hooks.count(modules)))
        if self.steps in (FIRST_SCAN, SECOND_SCAN):
            self._note(list(replaced.find(list(self._gradients), modules, user_line())))
            self._note(_some(last_error.find()))

    def _end_call(self) -> None:
        """A model was called; such rounds count where no steps end."""
        self._calls_since_step += 1
        # As many leaked nothing before.
        enough = max(self._calls_in_a_step(), self._calls_looked_at)
        if self._calls_since_step < enough or not self._lock.acquire(blocking=False):
            return  # another thread's call or step ends; this one is of no interest
        with self._own_work():
            try:
                self._look_at_call()
            finally:
                self._lock.release()
        self._report_new()

    def _look_at_call(self) -> None:
        if self._by_calls is None:
            self._by_calls = self._detector(_CERTAIN_CALLS)
        with collector.paused():
            self._by_calls.end_round()
        self._by_calls.modules.clear()

    def _calls_in_a_step(self) -> int:
        """So many there may be before a step or a backward pass ends."""
        if not torch.is_grad_enabled():
            return _CALLS_MIN
        if self.steps or self._calls_since_step < _CALLS_NO_OPTIMIZER_MIN:
            return _CALLS_WITH_GRADIENTS_MIN
        if self._has_optimizer is None:
            self._has_optimizer = _has_optimizer()
        return (
            _CALLS_WITH_GRADIENTS_MIN
            if self._has_optimizer
            else _CALLS_NO_OPTIMIZER_MIN
        )

    def _end_time(self) -> bool:
        """Some time has passed; whether that is a round, in a thread of its own."""
        with self._own_work(), self._lock, collector.paused():
            if not self._has_only_time:
                return False
            if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                self._clock.begin_again()
                return True
            if self._by_times is None:
                self._by_times = self._detector(_CERTAIN_TIMES)
            self._by_times.end_round()
            self._by_times.modules.clear()
        self._report_new(in_program=False)
        return self._failure is None

    def _end_times(self) -> None:
        """A model is called for the first time, or a step ends: times count no more."""
        if not self._has_only_time:
            return
        with self._lock:
            self._has_only_time = False
            if self._by_times is not None:
                self._by_times.stop()
                self._by_times = None

    # ---- What is said

    def _note(self, found: list[Finding]) -> None:
        known = {(finding.verdict, finding.line) for finding in self._found}
        self._found += [f for f in found if (f.verdict, f.line) not in known]

    def _report_new(self, in_program: bool = True) -> None:
        """Says what is new, or certain now, as asked.

        Args:
            in_program: Whether this is a call of the program's, which may raise.
        """
        if self.action == "count":
            return
        new = [
            finding
            for finding in self.findings
            if self._reported.get((finding.verdict, finding.line))
            not in (LEAKS, finding.certainty)
        ]
        self._reported.update({(f.verdict, f.line): f.certainty for f in new})
        if self.action == "raise" or not in_program:
            new = [finding for finding in new if finding.certainty == LEAKS]
        if not new:
            return
        text = self._report(new).text
        if self.action == "raise" and in_program:
            raise LeakError(text)
        log.asked_for(text)


def _has_optimizer() -> bool:
    """Whether there is any."""
    optimizers, _ = _C.instances((torch.optim.Optimizer,))
    return bool(optimizers)


def _each_second(finding: Finding, rounds: float) -> Finding:
    """What grows with each round, of which there are so many in a second."""
    grown, count = int(finding.growth_bytes * rounds), finding.count * rounds
    return replace(finding, per="second", growth_bytes=grown, count=count)


def _some(finding: Finding | None) -> list[Finding]:
    return [] if finding is None else [finding]
