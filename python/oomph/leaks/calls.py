"""Rounds of a program without optimizer steps: calls of its model.

A server, an evaluation, a generation call a model again and again. Of several modules
that are called outside of each other the one that is called most seldom leads.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from oomph.steps import global_hooks
from oomph.steps.leader import StepLeader


class Outermost:
    """Follows the calls of a method of ``torch.nn.Module``, not of those within.

    Args:
        name: Of the method, which modules call for their parts as well.
        after: Called after it with the module and the arguments.
    """

    def __init__(self, name: str, after: Callable[..., None]) -> None:
        self._name, self._after = name, after
        self._depth = 0
        self._original: Any = None
        self._wrapped: Any = None

    def start(self) -> None:
        """Begins to follow them."""
        original = getattr(torch.nn.Module, self._name)

        @functools.wraps(original)
        def method(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                self._depth -= 1
                if self._depth == 0 and self._wrapped is method:
                    self._after(module, *args, **kwargs)

        self._original, self._wrapped = original, method
        setattr(torch.nn.Module, self._name, method)

    def stop(self) -> None:
        """Tells no more."""
        if getattr(torch.nn.Module, self._name) is self._wrapped:
            setattr(torch.nn.Module, self._name, self._original)
        self._wrapped = None


class Calls:
    """Tells of the calls of the model that is called most seldom.

    Args:
        first: Called before the first of all.
        ended: Called after each.
    """

    def __init__(self, first: Callable[[], None], ended: Callable[[], None]) -> None:
        self._first, self._ended = first, ended
        self._leader = StepLeader()
        self._thread = threading.local()  # how many calls it is in
        self._handles: list[Any] = []
        self._are_any = False

    def start(self) -> None:
        """Begins to follow modules; not by hooks of their own, which are copied."""
        self._handles = global_hooks.put_on(self._begin, self._end)

    def stop(self) -> None:
        """Leaves them alone."""
        global_hooks.take_off(self._handles)

    def _begin(self, *_: Any) -> None:
        if not self._are_any:
            self._are_any = True
            self._first()
        if not torch.compiler.is_compiling():
            self._thread.depth = getattr(self._thread, "depth", 0) + 1

    def _end(self, module: torch.nn.Module, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._thread.depth = depth = max(0, getattr(self._thread, "depth", 0) - 1)
        if depth == 0 and self._leader.end_with(module):
            self._ended()
