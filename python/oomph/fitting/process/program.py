"""Runs a script in this process, and writes down what memory it took.

After so many steps the epoch ends that the script trains in, and the script with the
first step of the next, as by ``sys.exit()``; or at once, where no epoch is known. What
was seen is written before.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch

from oomph import _C, simulate
from oomph.base import state
from oomph.diagnosis import oom_error
from oomph.fitting.process import keeping, pretrained, readings, saving, weights
from oomph.fitting.process.extent import Extent
from oomph.fitting.process.larger_first import LargerFirst
from oomph.fitting.process.loaders import Loaders
from oomph.fitting.process.look import Look
from oomph.fitting.process.record import CHILD, SO_FAR, Ending, Later, Record
from oomph.simulate import absent, operators, ordinals, users
from oomph.steps import events, times

_exit = os._exit
_RUNNERS = (__name__, "runpy")
_EVERY_S = 0.5  # what was seen so far of a whole script is written
_NICE = 5  # below runs that answer
_ROUNDS_MAX = 16  # times as many steps, however often another optimizer leads
_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")


class EnoughSteps(SystemExit):
    """As many steps as were asked for have been seen."""


class Watch:
    """Sees steps and peaks of a script, and writes them down once.

    Where several optimizers take turns, the one that steps least often ends a step
    (:class:`~oomph.steps.leader.StepLeader`): so many of its own are waited for, and
    for one that is there and has not stepped yet. What a fork of the script takes is
    written down beside.

    Attributes:
        hindrance: As :class:`Record` has it.
        is_child: Whether this process is a fork of the script's.
    """

    def __init__(self) -> None:
        self.hindrance = ""
        self._path, self._extent = Path(), Extent()
        self._loaders = Loaders()
        self._larger = LargerFirst(self._loaders)
        self._asked_s, self._kept_file = 0.0, ""
        self._next_s = 0.0  # when to write what was seen so far
        self._optimizer = self._leader = 0  # who steps, and whose steps are counted
        self._asks_size = False
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self.is_child = False
        self._of_parent: list[Any] = []
        self._begin_record()

    def place(
        self, path: Path, extent: Extent, forecasts: bool, begin_s: float
    ) -> None:
        """Says where the run is, before CUDA is used.

        Args:
            path: Where to write what was seen (:class:`Record`, as JSON).
            extent: What is to be seen of the script.
            forecasts: Whether an out-of-memory error is to say what would help.
            begin_s: When the question was asked, in seconds of ``time.time()``.
        """
        self._path, self._extent = path, extent
        os.environ[users.VARIABLE] = str(path.parent)
        self._look = Look(extent.looks_on, extent.is_whole and not extent.until)
        self._larger.place(extent.looks_ahead, extent.ahead_step, extent.ahead)
        self._asked_s = begin_s
        if extent.is_whole:
            os.nice(_NICE)
        oom_error.set_forecasts(forecasts)

    def keep_files(self) -> None:
        """Has the script change no file of before, from its first use of a GPU on.

        It writes no tensors, to others copies, and ends where that is not enough.
        """
        if not self._extent.keeps_files:
            return
        saving.write_nothing()
        copies = self._path.with_name("copies")
        keeping.keep(self._asked_s, copies, self._end_before_change)

    @property
    def has_enough(self) -> bool:
        """Whether so many steps were seen, and what follows their epoch is."""
        return self._loaders.are_ended

    def begin(self) -> None:
        """Follows steps, and what would hide a peak."""
        if not state.is_installed():
            events.follow(torch)
        events.after_optimizer.append(self._note_optimizer)
        events.ended.append(self._end_step)
        self._loaders.follow(self._larger.note)
        for name in _RESETS:
            setattr(torch._C, name, _after(self._note_peaks, getattr(torch._C, name)))
        ask = _after(self._note_question, torch.cuda.mem_get_info)
        torch.cuda.mem_get_info = torch.cuda.memory.mem_get_info = ask
        os.register_at_fork(after_in_child=self._begin_child)
        os._exit = self._leave

    def _begin_child(self) -> None:
        self.is_child = True
        self._of_parent = self._ends  # a fork cannot give back CUDA events
        self._path = self._path.with_name(f"{os.getpid()}{CHILD}")
        self._begin_record()

    def _begin_record(self) -> None:
        self._ends: list[Any] = []  # of the leader's steps, as CUDA events
        self._steps_bytes: list[int] = []  # of all
        self._allocated = self._reserved = self._host = 0  # peaks before a reset
        self._lock = threading.Lock()

    def _leave(self, status: int) -> NoReturn:
        """The process ends, and nothing that Python does at its end is done."""
        try:
            if not self.is_child or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                self.write("script", status)
        finally:
            _exit(status)

    def _note_question(self) -> None:
        self._asks_size = True

    def _note_peaks(self) -> list[dict[str, Any]]:
        """Gives the metrics of the devices as well."""
        found = readings.metrics()
        for metrics in found:
            self._allocated = max(self._allocated, metrics["allocated_bytes.all.peak"])
            self._reserved = max(self._reserved, metrics["device_bytes_peak"])
            self._host = max(self._host, metrics["host_bytes_peak"])
        return found

    def _note_optimizer(self, optimizer: Any) -> None:
        self._optimizer = id(optimizer)
        self._stepped.add(optimizer)

    def _end_step(self) -> None:
        if self.has_enough:
            if self._loaders.is_next_epoch():
                self.write("steps", 0, "epoch")
                raise EnoughSteps(0)
            return
        self._loaders.note_step()
        self._larger.note_step()
        if self._leader != self._optimizer:
            self._leader = self._optimizer
            self._ends.clear()
        known = (
            metrics.get("step_active_bytes_peak", 0) for metrics in readings.metrics()
        )
        self._steps_bytes.append(max(known, default=0))
        self._ends.append(times.mark() if self._can_mark() else None)
        if self._has_seen_enough() and not self._looks_on():
            if self._extent.ends_epochs and self._loaders.end():
                self._write_so_far()
                return
            self.write("steps", 0)
            raise EnoughSteps(0)
        if self._extent.is_whole and time.monotonic() > self._next_s:
            self._write_so_far()
            self._next_s = time.monotonic() + _EVERY_S

    def _can_mark(self) -> bool:
        if self._extent.is_whole or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return False  # of many steps no time is asked
        return not torch.cuda.is_current_stream_capturing()

    def _has_seen_enough(self) -> bool:
        count, wanted = len(self._steps_bytes), self._extent.steps
        if self._extent.until:
            return count >= self._extent.until
        is_enough = len(self._ends) >= wanted and not self._is_one_to_come()
        return self._extent.is_whole or is_enough or count >= wanted * _ROUNDS_MAX

    def _looks_on(self) -> bool:
        found = self._note_peaks()
        goes_on = self._look.goes_on(
            self._steps_bytes, self._allocated, lambda: readings.trace(found)
        )
        self._larger.look()
        return goes_on or not self._larger.is_all_used()

    def _is_one_to_come(self) -> bool:
        """Whether an optimizer trains what none has trained that has stepped."""
        optimizers, _ = _C.instances((torch.optim.Optimizer,))
        trained = {id(parameter) for o in self._stepped for parameter in _trained(o)}
        return any(id(p) not in trained for o in optimizers for p in _trained(o))

    def write(self, ending: Ending, code: int, later: Later = "") -> None:
        """Writes down what was seen, unless it was already.

        Args:
            ending: How the script ended.
            code: Its exit code.
            later: What was seen after the steps.
        """
        with self._lock:
            if not self._path.exists():
                self._write_to(self._path, ending, code, later)

    def _end_before_change(self, path: str) -> NoReturn:
        self._kept_file = path
        self.write("steps", 0, "file")
        _exit(0)

    def _seconds(self) -> float:
        until_peak = 0.0 if self._extent.is_whole else self._look.seconds
        return until_peak or self._look.elapsed_s()

    def end(self) -> None:
        """The process ends, it is not known how; writes down what it took of a GPU."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self.write(
                "script", int(any(each["num_ooms"] for each in readings.metrics()))
            )

    def _write_so_far(self) -> None:
        """For the case that what follows takes too long."""
        with self._lock:
            later: Later = "" if self._extent.is_whole else "too long"
            self._write_to(self._path.with_suffix(SO_FAR), "steps", 0, later)

    def _write_to(self, path: Path, ending: Ending, code: int, later: Later) -> None:
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(self._record(ending, code, later).as_dict()))
        draft.rename(path)

    def _record(self, ending: Ending, code: int, later: Later) -> Record:
        found = self._note_peaks()
        failures = sum(metrics["num_ooms"] for metrics in found)
        if failures and code != 0:
            ending = "oom"
        elif self.has_enough and ending != "steps":  # it may want values after them
            ending, later = "steps", "end" if code == 0 else "error"
            code = 0
        error = oom_error.last_oom()
        return Record(
            ending=ending,
            exit_code=code,
            steps=len(self._ends),
            devices=len(readings.used(found)),
            allocated_bytes=self._allocated,
            reserved_bytes=self._reserved,
            other_bytes=readings.other_bytes(found) if found else 0,
            host_bytes=self._host,
            enough=self._look.step_of(self._allocated),
            until=self._look.until,
            trace=self._look.trace or readings.trace(found),
            failures=failures,
            steps_bytes=self._steps_bytes,
            ahead_step=self._larger.step,
            ahead=self._larger.plan.first,
            ahead_more=self._larger.plan.more,
            batches_left=self._larger.plan.left,
            batches_known=self._larger.plan.looked_at,
            batches_left_out=self._larger.plan.left_out,
            later=later,
            is_cut=self._loaders.is_cut,
            guesses=operators.guess_count(),
            unwritten_bytes=weights.unwritten_bytes(),
            without_weights=pretrained.made(),
            hindrance=self.hindrance,
            kept_file=self._kept_file,
            seconds=self._seconds(),
            step_ms=readings.step_ms(self._ends),
            asks_size=self._asks_size,
            error="" if error is None else error.brief,
            diagnosis=None if error is None else error.as_dict(),
        )


def _trained(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from (p for p in group["params"] if p.requires_grad)


def _after(first: Callable[[], Any], then: Callable[..., Any]) -> Callable[..., Any]:
    def both(*arguments: Any, **named: Any) -> Any:
        first()
        return then(*arguments, **named)

    return both


def run(watch: Watch, module: bool, target: str, arguments: Sequence[str]) -> int:
    """Runs a script as Python does.

    Args:
        watch: Writes down what is seen.
        module: Whether the target is a module's name.
        target: The script.
        arguments: Its own.

    Returns:
        Its exit code.
    """
    watch.begin()
    absent.command = [sys.executable, *["-m"] * module, target, *arguments]
    sys.argv = [target, *arguments]
    try:
        if module:
            sys.path[0] = os.getcwd()
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(target).resolve().parent)
            runpy.run_path(target, run_name="__main__")
    except SystemExit as end:
        code = _code_of(end)
    except BaseException as error:
        if watch.has_enough and not isinstance(error, torch.OutOfMemoryError):
            watch.write("error", 1)
            return 0
        traceback.print_exception(error.with_traceback(_of_script(error)))
        missing = ordinals.explain(error, os.environ[simulate.VARIABLE])
        if missing:
            print(missing, file=sys.stderr)
        if isinstance(error, EOFError):
            print("oomph: a script is given no standard input here", file=sys.stderr)
        watch.write("error", 1)
        return 1
    else:
        code = 0
    watch.write("script", code)
    return code


def _of_script(error: BaseException) -> TracebackType | None:
    """The traceback of an error without what runs the script."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_globals.get("__name__") in _RUNNERS:
        found = found.tb_next
    return found


def _code_of(end: SystemExit) -> int:
    """The exit code that Python would give, which prints a text."""
    if end.code is None or isinstance(end.code, int):
        return int(end.code or 0)
    print(end.code, file=sys.stderr)
    return 1
