"""What leaves the device ahead of need, and when it comes back.

In the first step that runs out of device memory, blocks fall back to the host, where
kernels use them over the link. That step also shows how many bytes were missing. From
the next step on, oomph sends as many bytes of what autograd saves to the host ahead of
need: the earliest saved first, since backward needs them last. They are fetched before
backward comes to them. If memory runs out all the same, more of it leaves at that
moment. If the optimizer does not fit, it works piece by piece. All of this ends when
memory is no longer short.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any

import torch

from oomph import _C
from oomph.base import log
from oomph.memory.stats import more_metrics
from oomph.offload import activations, optimizers, report, transfer
from oomph.offload.blocks import Blocks
from oomph.offload.devices import Mode, Planner
from oomph.offload.policy import DevicePlan
from oomph.offload.recorder import Recorder
from oomph.steps import events

_planner: Planner | None = None
_mode = Mode()


def _put_hooks() -> None:
    """Puts the hooks on while anything that forward saves is to be offloaded.

    The caller holds the lock.
    """
    if _planner is not None and _planner.is_wanted():
        activations.start(_planner)
    else:
        activations.stop()


def set_mode(mode: Mode) -> None:
    """What is done from now on; at once, where nothing has to be short first."""
    global _mode
    _mode = mode
    resume()


def resume() -> None:
    """After an end: starts anew where nothing has to be short first."""
    if _mode.starts_at_once:
        start()


def start(always: bool = False) -> Planner | None:
    """Creates the planner; the hooks follow with the first shortage, or at once.

    Args:
        always: Whether everything that may leave does, whatever the mode says.

    Returns:
        It; None while a batch finder runs, of whose tries nothing is learnt.
    """
    global _planner
    with transfer.lock:
        if _C.batch_finder_runs():
            return None
        if _planner is None:
            _planner = Planner(replace(_mode, always=always or _mode.always))
            if _mode.sends:
                _C.set_room_maker(_make_room)
        _put_hooks()
        return _planner


def stop() -> None:
    """Ends planning and forgets what was learnt; a shortage starts it anew.

    What was offloaded stays usable.
    """
    global _planner
    with transfer.lock:
        ended, _planner = _planner, None
        _C.set_room_maker(None)
        _put_hooks()
        if ended is None:
            return
        ended.blocks.stop()
        for index in ended.devices:
            _C.predict_host(index, 0, 0)
            optimizers.stop(index)


def _make_room(device: int, size_bytes: int) -> int:
    """A block finds no room: sends so much away, if there is that; gives how much."""
    plan = _plan_of(device)
    return 0 if plan is None else plan.make_room(size_bytes)


def _forget_in_child() -> None:
    """After a fork the core does nothing, so there is nothing to plan."""
    global _planner
    _planner = None
    activations.forget_in_child()


os.register_at_fork(after_in_child=_forget_in_child)


def note_shortage(device: int) -> None:
    """A block fell back to the host: from the next step on, something else leaves."""
    planner = start()
    if planner is not None:
        planner.device(device)


def before_optimizer(_: torch.optim.Optimizer) -> None:
    """An optimizer is about to work."""
    if (planner := _planner) is not None:
        planner.before_optimizer()


def before_closure(_: torch.optim.Optimizer) -> None:
    """Forward and backward run within an optimizer's step."""
    if (planner := _planner) is not None:
        planner.record(Recorder.interrupt_optimizer)


def after_optimizer(_: torch.optim.Optimizer) -> None:
    """An optimizer has taken a step."""
    if (planner := _planner) is not None:
        planner.record(Recorder.after_optimizer)


def end_step(rescued_devices: set[int]) -> set[int]:
    """A step has ended; some devices were short of memory in it.

    Returns:
        The devices that had something on the host in it.
    """
    planner = start() if rescued_devices else _planner
    if planner is None:
        return set()
    offloading = planner.end_step(rescued_devices)
    with transfer.lock:
        _put_hooks()
        activations.cover_thread()
    return offloading


def explain() -> dict[int, dict[str, Any]]:
    """Says what the planner does on each device, and why, as data and in words.

    docs/how_offload_works.md describes the planner.

    Returns:
        A dict for each device that was ever short of memory, by its index. Its keys:

        * ``missing_bytes``: what the last step needed beyond what the device has, with
          all that runs again kept.
        * ``recomputed_calls``, ``recomputed_bytes``, ``recompute_ms``: calls of modules
          that run again in backward, what that frees, and about how long it takes.
        * ``expected_step_ms``: what a step is expected to take with that; 0 if none
          runs again.
        * ``left_alone``: why other calls do not run again, and how many.
        * ``offloaded_bytes``: the most that was away at one time in that step.
        * ``state_host_bytes``: bytes of optimizers' state that are on the host.
        * ``step_host_used_bytes``: what the last step used on host pages, as
          :func:`oomph.stats` has it.
        * ``unreached_bytes``: the most that was on the host besides, since it is not
          saved for backward or others hold it.
        * ``step_sent_bytes``, ``step_fetched_bytes``: what crossed the link in that
          step.
        * ``step_sent_late_bytes``: of what was sent, what left only when memory had run
          out, as the plan was not enough.
        * ``step_waited_ms``: how long the device waited for copies back in it.
        * ``sent_bytes``, ``fetched_bytes``, ``waited_ms``, ``step_ms``,
          ``step_ms_without_offload``: as :func:`oomph.stats` has them.
        * ``text``: all of this in words.

    Example:
        >>> for device, plan in oomph.planner.explain().items():
        ...     print(plan["text"])
    """
    with transfer.lock:
        plans = {} if _planner is None else _planner.devices
        return {
            index: report.describe(plan, _blocks_of(index))
            for index, plan in plans.items()
        }


def _plan_of(device: int) -> DevicePlan | None:
    planner = _planner
    return None if planner is None else planner.devices.get(device)


def _blocks_of(device: int) -> Blocks | None:
    """What runs again on a device; None: nothing was looked at there."""
    blocks = _planner.blocks if _planner is not None else None
    return blocks if blocks is not None and blocks.device == device else None


def metrics(device: int) -> dict[str, float]:
    """What :func:`oomph.stats` says of a device's offload; see there."""
    return report.metrics(_plan_of(device))


def __getattr__(name: str) -> Any:
    if name == "figures":  # its name up to 0.1
        text = "oomph.planner.figures is called oomph.planner.metrics now"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return metrics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _rows(device: int) -> dict[str, str]:
    """What the table at exit says of this."""
    plan = _plan_of(device)
    return {} if plan is None else report.rows(plan, _blocks_of(device))


log.more_rows.append(_rows)
more_metrics.append(metrics)
events.before_optimizer.append(before_optimizer)
events.before_closure.append(before_closure)
events.after_optimizer.append(after_optimizer)
events.ending.append(end_step)
