"""A recurrent loop that saves many tensors, on a card that has room for half of them.

Prints as JSON what the hooks of saved tensors did in each step: the lines of oomph's
Python that ran, and the processor time of their threads.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn

HERE = "/oomph/"  # in the path of files of which lines are counted
FLOATS = 300_000  # in a state: more than 1 MiB, or it would stay
STEPS = 4


class Loop(nn.Module):
    """Many small operations on one state.

    Args:
        length: How many.
        habit: ``plain``; ``reuse``: what is saved first is used all along, so that
            backward goes back to it; ``hold``: all states are kept until the step ends.
    """

    def __init__(self, length: int, habit: str) -> None:
        super().__init__()
        self.length, self.habit = length, habit
        self.scale = nn.Parameter(torch.ones(1, device="cuda"))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """All states that are kept, the last state last."""
        x = x * self.scale
        early, states = x.exp(), []
        for i in range(self.length):
            x = torch.tanh(x)
            if self.habit == "reuse" and i % 20 == 0:
                x = x * early
            if self.habit == "hold":
                states.append(x)
        return [*states, x]


class Counter:
    """Counts what runs in the hooks, whichever thread runs them."""

    def __init__(self, by_line: bool) -> None:
        from oomph.offload import activations

        self.lines = self.ns = 0
        self._trace = self._counted if by_line else None
        activations._pack = self._watched(activations._pack)
        activations._unpack = self._watched(activations._unpack)

    def _watched(self, hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def watched(given: Any) -> Any:
            sys.settrace(self._trace)
            start = time.thread_time_ns()
            try:
                return hook(given)
            finally:
                self.ns += time.thread_time_ns() - start
                sys.settrace(None)

        return watched

    def _counted(self, frame: FrameType, event: str, _: Any) -> Any:
        if HERE not in frame.f_code.co_filename:
            return None
        self.lines += event == "line"
        return self._counted


def main() -> None:
    """Runs some steps; the first of them is short of memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("length", type=int)
    parser.add_argument("habit", choices=("plain", "reuse", "hold"))
    parser.add_argument("--lines", action="store_true", help="count lines, which slows")
    options = parser.parse_args()
    import oomph

    model, counter = Loop(options.length, options.habit), Counter(options.lines)
    x = torch.zeros(FLOATS, device="cuda")
    told = []
    for _ in range(STEPS):
        counter.lines = counter.ns = 0
        states = model(x)
        states[-1].sum().backward()
        del states
        model.scale.grad = None
        oomph.step()
        sent_bytes = oomph.stats()["sent_bytes"]
        told.append({"lines": counter.lines, "ns": counter.ns, "sent": sent_bytes})
    print(json.dumps(told))


if __name__ == "__main__":
    main()
