"""Has calls run again where there is no host memory for what a plan did not expect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from torch import nn

from oomph.recompute.calls import Call, Key, Root, size_of
from oomph.recompute.followers import Host, Running

_LARGER = 0.02  # by which a step may be larger than is planned for


class Following(Running):
    """Has chosen calls run again, as long as steps are no larger than is planned for.

    The inputs of a turn's outermost call decide. Where they are larger, or the call was
    not seen before, all calls are converted: there is no host memory for an error. If
    more is in use than was planned all the same when a call begins, those that may run
    again do, from there on.

    Args:
        host: Who plans.
        calls: That may run again.
        chosen: Of these, by their keys, what does.
        expected: Bytes that are to be in use when a call begins, by its key.
        roots: Outermost calls by their keys, with inputs as large as is planned for.
        turn: Which forward of the step is timed, from 1.
        device: Whose times are taken.
    """

    def __init__(
        self,
        host: Host,
        calls: Iterable[Call],
        chosen: Collection[Key],
        expected: dict[Key, float],
        roots: dict[Key, Root],
        turn: int,
        device: int,
    ) -> None:
        super().__init__(host, calls, turn, device)
        self._chosen, self._expected, self._roots = chosen, expected, roots
        self._begun: Counter[int] = Counter()  # outermost calls of the turn, by module
        self._is_larger = False

    def wants(self, module: nn.Module) -> bool:
        """Whether the calls of a module are of interest: any may be the outermost."""
        is_root = self._is_new_turn or self._root_of(module) is not None
        return is_root or super().wants(module)

    def turn(self) -> None:
        """Another forward begins."""
        super().turn()
        self._begun.clear()
        self._is_larger = False

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A call begins."""
        if not self._open and self._is_too_large(module, size_of(args, kwargs)):
            self.host.convert().enter(module, args, kwargs)
            return None
        return super().begin(module, args, kwargs)

    def _is_too_large(self, root: nn.Module, size_bytes: int) -> bool:
        """Whether an outermost call begins a turn larger than is planned for."""
        key = id(root), self._begun[id(root)]
        if key not in self._roots and self._begun[id(root)] > 0:
            self.turn()  # the last was given up, without a backward
        is_first = not self._begun
        self._begun[id(root)] += 1
        known = self._root_of(root)
        most_bytes = -1 if known is None else known.size_bytes
        return is_first and size_bytes > (1 + _LARGER) * most_bytes

    def _root_of(self, module: nn.Module) -> Root | None:
        """The first outermost call of a module; None: there was none."""
        root = self._roots.get((id(module), 0))
        return root if root is not None and root.module() is module else None

    def may_run(self, call: Call) -> bool:
        """Whether a call is to run again that begins now."""
        if not self._is_larger and call.key in self._expected:
            used_bytes = self.host.used_bytes()
            self._is_larger = used_bytes > (1 + _LARGER) * self._expected[call.key]
        return self._is_larger or call.key in self._chosen
