"""Runs one program and notes each of its steps, from outside.

A step is what oomph takes for one: it ends with an optimizer's. The hooks here stand
around oomph's own, so that what the optimizer used on the host is told apart from what
stayed there for the whole step. Nothing of the program is wrapped.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

PHASES = ("forward", "backward", "optimizer", "stayed")


@dataclass
class Step:
    """What one step took.

    Attributes:
        kind: What the program says of it; steps of a kind are alike.
        need_bytes: The most bytes in use at a time, wherever they lay.
        host_used_bytes: Of blocks that kernels used on host pages.
        used_in: The same by phase; ``stayed`` counts what lay there all along.
        most_host_bytes: The most host memory that oomph held.
    """

    ms: float
    need_bytes: int
    host_used_bytes: int
    used_in: dict[str, int]
    rescues: int
    most_host_bytes: int
    sent_bytes: int
    fetched_bytes: int
    kind: str = ""


class Steps:
    """The steps of the process so far.

    Args:
        where: Whether to see which lines and nodes use host pages.
    """

    def __init__(self, where: bool = False) -> None:
        self.where: Any = None
        if where:
            from where import Where

            self.where = Where()
        self.ended: list[Step] = []
        self._events: list[Any] = []
        self._told = 0  # steps whose kind is known
        self._used_in = dict.fromkeys(PHASES, 0)
        self._used_bytes = 0
        self._before: dict[str, Any] = {}

    def install(self, settings: str) -> None:
        """Installs oomph, and hooks around its own."""
        import oomph
        import torch
        from torch.optim import optimizer

        optimizer.register_optimizer_step_pre_hook(lambda *_: self._phase("backward"))
        optimizer.register_optimizer_step_post_hook(lambda *_: self._phase("optimizer"))
        oomph.install(settings)
        optimizer.register_optimizer_step_post_hook(lambda *_: self._end())
        backward = torch.autograd.backward

        def marked(*arguments: Any, **named: Any) -> None:
            self._phase("forward")
            if self.where is not None:
                self.where.before_backward(arguments[0])
            backward(*arguments, **named)
            self._phase("backward")

        torch.autograd.backward = marked
        self._events.append(self._mark())
        self._before = oomph.stats()

    def run(self, program: Callable[[], Any]) -> list[Step]:
        """Runs it to its end; one that yields says the kind of its steps."""
        import torch

        if inspect.isgeneratorfunction(program):
            for kind in program():
                for step in self.ended[self._told :]:
                    step.kind = str(kind)
                self._told = len(self.ended)
        else:
            program()
        torch.cuda.synchronize()
        for i, step in enumerate(self.ended):
            step.ms = self._events[i].elapsed_time(self._events[i + 1])
        return self.ended

    @staticmethod
    def _mark() -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _phase(self, name: str) -> None:
        """What was used on the host since the last phase belongs to this one."""
        import oomph

        used = oomph.stats()["host_used_bytes"]
        self._used_in[name] += used - self._used_bytes
        self._used_bytes = used

    def _end(self) -> None:
        import oomph
        import torch

        self._phase("stayed")
        now = oomph.stats()
        if now["steps"] == self._before["steps"]:  # another optimizer will end it
            return
        if self.where is not None:
            self.where.end_step(len(self.ended))
        past = {
            key: now[key] - self._before[key]
            for key in ("rescues", "sent_bytes", "fetched_bytes")
        }
        self.ended.append(
            Step(
                ms=0.0,
                need_bytes=torch.cuda.max_memory_allocated(),
                host_used_bytes=now["step_host_used_bytes"],
                used_in=self._used_in,
                most_host_bytes=now["host_bytes_peak"],
                **past,
            )
        )
        self._events.append(self._mark())
        self._used_in = dict.fromkeys(PHASES, 0)
        self._before = now
        torch.cuda.reset_peak_memory_stats()


def measure(
    program: Callable[[], Any], settings: str, where: bool = False
) -> dict[str, Any]:
    """Runs a program in this process; gives its steps, and what the planner says.

    Args:
        program: Trains, and ends.
        settings: Of oomph.
        where: Whether to see which lines and nodes use host pages.
    """
    steps = Steps(where)
    steps.install(settings)
    error = ""
    try:
        steps.run(program)
    except Exception as raised:
        import traceback

        error = "".join(traceback.format_exception(raised)[-6:])[-3000:]
    from oomph import planner

    explained = planner.explain().get(0, {})
    return {
        "error": error,
        "steps": [asdict(step) for step in steps.ended],
        "explained": {k: v for k, v in explained.items() if k != "text"},
        "text": explained.get("text", ""),
        "where": dict(steps.where.last) if steps.where is not None else {},
    }
