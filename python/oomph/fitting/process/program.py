"""Runs a script in this process, and writes down what memory it took.

After so many steps the epoch ends that the script trains in, and the script with the
first step of the next, as by ``sys.exit()``; or at once, where no epoch is known. What
was seen is written before.
"""

from __future__ import annotations

import json
import os
import runpy
import statistics
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch

from oomph import _C, simulate
from oomph.base import state
from oomph.diagnosis import oom_error
from oomph.fitting.process import pretrained, weights
from oomph.fitting.process.larger_first import LargerFirst
from oomph.fitting.process.loaders import Loaders
from oomph.fitting.process.look import Look
from oomph.fitting.process.record import CHILD, SO_FAR, Ending, Later, Record
from oomph.simulate import absent, operators, ordinals, users
from oomph.steps import events, times

_exit = os._exit
_RUNNERS = (__name__, "runpy")
_ROUNDS_MAX = 16  # times as many steps, however often another optimizer leads
_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
_TRACE = [
    f"{what}.{pool}_pool.{counter}"
    for what in ("allocation", "requested_bytes")
    for pool in ("small", "large")
    for counter in ("allocated", "peak")
]


class EnoughSteps(SystemExit):
    """As many steps as were asked for have been seen."""


class Watch:
    """Sees steps and peaks of a script, and writes them down once.

    Where several optimizers take turns, the one that steps least often ends a step
    (:class:`~oomph.steps.leader.StepLeader`): so many of its own are waited for, and
    for one that is there and has not stepped yet. What a fork of the script takes is
    written down beside.

    Args:
        steps: So many are to be seen at least.

    Attributes:
        hindrance: As :class:`Record` has it.
        is_child: Whether this process is a fork of the script's.
    """

    def __init__(self, steps: int) -> None:
        self.hindrance = ""
        self._path, self._wanted, self._until = Path(), steps, 0
        self._loaders, self._ends_epochs = Loaders(), True
        self._larger = LargerFirst(self._loaders)
        self._optimizer = self._leader = 0  # who steps, and whose steps are counted
        self._asks_size = False
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self.is_child = False
        self._of_parent: list[Any] = []
        self._begin_record()

    def place(
        self,
        path: Path,
        forecasts: bool,
        ends_epochs: bool,
        looks_on: bool,
        until: int,
        looks_ahead: bool,
        ahead_step: int,
        ahead: Sequence[Any],
    ) -> None:
        """Says where the run is, before CUDA is used.

        Args:
            path: Where to write what was seen (:class:`Record`, as JSON).
            forecasts: Whether an out-of-memory error is to say what would help.
            ends_epochs: Whether to see what follows the epoch of the steps.
            looks_on: Whether to see more steps, for as long as those took.
            until: The step that ends the script; 0: as many as it was made for.
            looks_ahead: Whether to look at the batches that are to come.
            ahead_step: The step after which some come first; 0: none do.
            ahead: Indices of these.
        """
        self._path, self._until = path, until
        os.environ[users.VARIABLE] = str(path.parent)
        self._look = Look(looks_on)
        self._larger.place(looks_ahead, ahead_step, ahead)
        self._ends_epochs = ends_epochs
        oom_error.set_forecasts(forecasts)

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
        found = _metrics()
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
        known = (metrics.get("step_active_bytes_peak", 0) for metrics in _metrics())
        self._steps_bytes.append(max(known, default=0))
        can_mark = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if can_mark and not torch.cuda.is_current_stream_capturing():
            self._ends.append(times.mark())
        else:
            self._ends.append(None)
        if self._has_seen_enough() and not self._looks_on():
            if self._ends_epochs and self._loaders.end():
                self._write_so_far()
                return
            self.write("steps", 0)
            raise EnoughSteps(0)

    def _has_seen_enough(self) -> bool:
        count = len(self._steps_bytes)
        if self._until:
            return count >= self._until
        is_enough = len(self._ends) >= self._wanted and not self._is_one_to_come()
        return is_enough or count >= self._wanted * _ROUNDS_MAX

    def _looks_on(self) -> bool:
        found = self._note_peaks()
        goes_on = self._look.goes_on(
            self._steps_bytes, self._allocated, lambda: _trace(found)
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

    def end(self) -> None:
        """The process ends, it is not known how; writes down what it took of a GPU."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self.write("script", int(any(each["num_ooms"] for each in _metrics())))

    def _write_so_far(self) -> None:
        """For the case that what follows takes too long."""
        with self._lock:
            self._write_to(self._path.with_suffix(SO_FAR), "steps", 0, "too long")

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
            devices=len(_used(found)),
            allocated_bytes=self._allocated,
            reserved_bytes=self._reserved,
            other_bytes=_other_bytes(found) if found else 0,
            host_bytes=self._host,
            enough=self._look.enough,
            until=self._look.until,
            trace=self._look.trace or _trace(found),
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
            seconds=self._look.seconds or self._look.elapsed_s(),
            step_ms=_step_ms(self._ends),
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


def _metrics() -> list[dict[str, Any]]:
    """What the allocator says of each device; none before CUDA is used."""
    from oomph.setup.environment import collect_stats

    return [*collect_stats().values()]


def _trace(found: Sequence[dict[str, Any]]) -> list[int]:
    """Counts and sums of all that the devices were asked for."""
    return [*chain(*sorted([metrics[name] for name in _TRACE] for metrics in found))]


def _used(found: Sequence[dict[str, Any]]) -> list[int]:
    """The devices on which something was allocated."""
    return [d for d, each in enumerate(found) if each["allocated_bytes.all.peak"] > 0]


def _other_bytes(found: Sequence[dict[str, Any]]) -> int:
    """What is in use and not the allocator's, on the device that has most of it."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    most = 0
    for device in _used(found) or [0]:
        free_bytes, total_bytes = runtime.cudaMemGetInfo(device)
        own = found[device]["device_bytes"]
        most = max(most, total_bytes - free_bytes - own)
    return most


def _step_ms(ends: Sequence[Any]) -> float:
    """The usual time of a step but for the first, which allocates states."""
    marks = [end for end in ends if end is not None]
    if len(marks) < 2:
        return 0.0
    torch.cuda.synchronize()
    return float(statistics.median(a.elapsed_time(b) for a, b in pairwise(marks)))


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
