"""Steps of the program: what ends them, and who hears of it.

Optimizers of ``torch.optim`` end steps, or :func:`step` does. Whoever wants to know
adds a function to one of the lists here; nothing here knows who does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from oomph import _C
from oomph.steps import levels, times
from oomph.steps.leader import StepLeader

# An optimizer is about to work: as its step begins, and after each closure of its.
before_optimizer: list[Callable[[Any], None]] = []
# It calls a closure: forward and backward run in there, and are not its work.
before_closure: list[Callable[[Any], None]] = []
# It has taken it.
after_optimizer: list[Callable[[Any], None]] = []
# A step ends; the devices that were rescued in it. Gives those that had something on
# the host.
ending: list[Callable[[set[int]], set[int]]] = []
# It has ended. May raise, from the optimizer's step().
ended: list[Callable[[], None]] = []

began_at = 0  # the number that autograd's next node had as this step began


def step() -> None:
    """Tells oomph that a step has ended, in a loop without an optimizer.

    Steps are how oomph knows that work repeats: once two successive ones are alike, it
    packs the next. Optimizers of ``torch.optim`` end steps by themselves. In a loop
    that has none, such as inference, call this at the end of each round.

    Raises:
        LeakError: This step showed a leak, and the watch is to raise
            (``leaks:raise``, ``oomph.leaks.watch("raise")``).

    Example:
        >>> for batch in batches:
        ...     output = model(batch)
        ...     oomph.step()
    """
    global began_at
    mask = _C.step()
    rescued = {i for i in range(_C.DEVICE_MAX) if mask >> i & 1}
    offloading: set[int] = set()
    for end in list(ending):
        offloading |= end(rescued)
    times.end_step(offloading)
    levels.end_step()
    began_at = next_node()
    for listener in list(ended):
        listener()


def next_node() -> int:
    """The number that autograd's next node of this thread gets."""
    import torch

    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def follow(torch: ModuleType) -> None:
    """Has every optimizer report when a step begins and ends.

    Also one whose step is compiled, which calls the hooks as they are. Optimizers that
    step while backward goes on, one for each parameter, end a step together with it.
    """
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    leader = StepLeader()
    ended_by: set[int] = set()  # backward passes at whose ends a step does

    def after(optimizer: Any, *_: Any) -> None:
        backward = torch._C._current_graph_task_id()
        if backward < 0:
            end_with(optimizer)
        elif backward not in ended_by:
            ended_by.add(backward)
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: end_with_backward(backward))

    def end_with(optimizer: Any) -> None:
        _notify(after_optimizer, optimizer)
        if leader.end_with(optimizer):
            step()

    def end_with_backward(backward: int) -> None:
        ended_by.discard(backward)
        step()

    # As torch.compiler.disable, which would import the compiler at once.
    register_optimizer_step_pre_hook(torch._disable_dynamo(_before))
    register_optimizer_step_post_hook(torch._disable_dynamo(after))


def _before(optimizer: Any, arguments: Any, named: Any) -> Any:
    """Gives what to call an optimizer with in place of these, or None."""
    _notify(before_optimizer, optimizer)
    if not before_closure or not any(map(callable, (*arguments[1:], *named.values()))):
        return None

    def outside(argument: Any) -> Any:
        return _outside(optimizer, argument) if callable(argument) else argument

    return (
        (arguments[0], *map(outside, arguments[1:])),
        {name: outside(argument) for name, argument in named.items()},
    )


def _outside(optimizer: Any, closure: Callable[..., Any]) -> Callable[..., Any]:
    """The closure of an optimizer's step, set apart from the optimizer's own work."""

    @functools.wraps(closure)
    def run(*arguments: Any, **named: Any) -> Any:
        _notify(before_closure, optimizer)
        result = closure(*arguments, **named)
        _notify(before_optimizer, optimizer)
        return result

    return run


def _notify(listeners: list[Callable[[Any], None]], optimizer: Any) -> None:
    for listener in list(listeners):
        listener(optimizer)
