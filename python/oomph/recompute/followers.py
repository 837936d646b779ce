"""Who follows the calls of modules through a step: to watch, to try, to run again.

One thread is followed, the first that calls a module. Calls end in the order in which
they began, from the last; what an exception cut short ends with those around it.
"""

from __future__ import annotations

import bisect
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from oomph.recompute.calls import Call, CallTree, Key, Numbers
from oomph.recompute.purity import Aside, Trial, Trials, forbids, is_watched, refuses
from oomph.recompute.rerun import Rerun
from oomph.steps import times

Waits = Iterable[tuple[torch.cuda.Event, torch.cuda.Event]]


class Follower:
    """Follows calls; what it does with each is its kind's.

    Args:
        place: Gives the place of the tensor that is saved next.
    """

    def __init__(self, place: Callable[[], int]) -> None:
        self.place = place
        self._thread = 0
        self._open: list[tuple[nn.Module, Any]] = []
        self._is_new_turn = True

    def wants(self, module: nn.Module) -> bool:
        """Whether the calls of a module are of interest."""
        raise NotImplementedError

    def turn(self) -> None:
        """Another forward begins, the first or after a backward."""

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A call begins; gives what is to be known when it ends."""
        raise NotImplementedError

    def end(self, begun: Any, output: Any) -> None:
        """A call has ended."""
        raise NotImplementedError

    def give_up(self, begun: Any) -> None:
        """A call ended with an exception."""

    def saved(self, tensor: torch.Tensor) -> None:
        """A tensor is saved under the hooks, no parameter or buffer."""

    def used(self, place: int) -> None:
        """Backward uses what was saved at a place."""
        self._is_new_turn = True

    def finished(self) -> None:
        """Backward is through, and an optimizer begins."""

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A module is called under the hooks."""
        if not torch.is_grad_enabled():
            return
        if self._thread == 0:
            self._thread = threading.get_ident()
        if threading.get_ident() != self._thread:
            return
        if self._is_new_turn:
            self._is_new_turn = False
            self.turn()
        self._open.append((module, self.begin(module, args, kwargs)))

    def leave(self, module: nn.Module, output: Any, failed: bool) -> None:
        """A call has ended that may have been followed."""
        if threading.get_ident() != self._thread:
            return
        if not any(module is opened for opened, _ in self._open):
            return
        while self._open:
            opened, begun = self._open.pop()
            if opened is module and not failed:
                self.end(begun, output)
            else:
                self.give_up(begun)
            if opened is module:
                return

    def abandon(self) -> None:
        """The outermost call of this thread has ended: what is open in it has, too."""
        if threading.get_ident() == self._thread:
            self.close()

    def close(self) -> None:
        """Ends all that is open."""
        while self._open:
            self.give_up(self._open.pop()[1])


class Watching(Follower):
    """Records what each call saves.

    Attributes:
        trees: Of each turn.
    """

    def __init__(self, place: Callable[[], int]) -> None:
        super().__init__(place)
        self.trees: list[CallTree] = []

    def wants(self, module: nn.Module) -> bool:
        """Whether the calls of a module are of interest."""
        return True

    def turn(self) -> None:
        """Another forward begins."""
        self.trees.append(CallTree(self.place()))

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A call begins."""
        self.trees[-1].enter(module, args, kwargs, self.place())
        return module

    def end(self, begun: Any, output: Any) -> None:
        """A call has ended."""
        self.trees[-1].leave(begun, self.place())

    def give_up(self, begun: Any) -> None:
        """A call ended with an exception."""
        self.end(begun, None)

    def saved(self, tensor: torch.Tensor) -> None:
        """A tensor is saved."""
        if threading.get_ident() == self._thread and not self._is_new_turn:
            self.trees[-1].note(tensor)

    def used(self, place: int) -> None:
        """Backward uses what was saved at a place."""
        if not self._is_new_turn and self.trees:
            self.trees[-1].end_forward()
        super().used(place)


class _Chosen(Follower):
    """Follows calls that were seen before.

    Args:
        place: As of a follower.
        calls: These, by their keys.
    """

    def __init__(self, place: Callable[[], int], calls: Iterable[Call]) -> None:
        super().__init__(place)
        self._calls = {call.key: call for call in calls}
        self._modules: dict[int, weakref.ref[nn.Module]] = {
            call.key[0]: call.module for call in self._calls.values()
        }
        self._numbers = Numbers()

    def wants(self, module: nn.Module) -> bool:
        """Whether the calls of a module are of interest."""
        known = self._modules.get(id(module))
        return known is not None and known() is module

    def turn(self) -> None:
        """Another forward begins."""
        self._numbers.restart()

    def call_of(self, module: nn.Module) -> Call | None:
        """The call that begins now, if it was seen before."""
        return self._calls.get(self._numbers.key(module))


@dataclass
class Times:
    """What the parts of a step took, in milliseconds.

    The parts lie between the boundaries: where calls begin and end.

    Attributes:
        forward: Of each part.
        backward: Of each part, less what it waited for copies.
        rest: From the end of backward to that of the step.
    """

    forward: list[float]
    backward: list[float]
    rest: float


class Trying(_Chosen):
    """Watches calls, and runs each again, to see whether it may be.

    Args:
        place: As of a follower.
        calls: These.
        bounds: The places of their boundaries, in the order of time, from the first
            place of the step.
        aside: Gives a context for what the program itself would not run.
        turn: In which forward of the step, from 1.
        device: Whose times are taken.

    Attributes:
        trials: By the keys of the calls.
        boundaries: Which calls began and ended, in the order of time.
    """

    def __init__(
        self,
        place: Callable[[], int],
        calls: Iterable[Call],
        bounds: list[int],
        aside: Aside,
        turn: int,
        device: int,
    ) -> None:
        super().__init__(place, calls)
        self._turn = turn
        self._device = device
        self.trials: dict[Key, Trial] = {}
        self.boundaries: list[Key] = []
        self._bounds = [place() - 1 + bound for bound in bounds]
        self._watch = Trials(aside, device)
        self._turns = 0
        # Events, and whether the time since the one before counts: what runs for
        # trials alone does not.
        self._forward: list[tuple[torch.cuda.Event, bool]] = []
        self._at: list[int] = []  # the event at each boundary
        self._backward: list[tuple[torch.cuda.Event, int]] = []  # and the part
        self._end: torch.cuda.Event | None = None

    def turn(self) -> None:
        """Another forward begins."""
        super().turn()
        self._turns += 1
        if self._turns == self._turn:
            self._mark()

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A call begins."""
        call = self.call_of(module)
        if call is None or self._turns != self._turn:
            return None
        self._bound(call.key)
        trial = self.trials[call.key] = self._watch.begin(module, args, kwargs)
        self._mark(counts=False)
        return call.key, trial, self.place()

    def end(self, begun: Any, output: Any) -> None:
        """A call has ended: it runs again."""
        if begun is not None:
            key, trial, first = begun
            self._bound(key)
            self._watch.end(trial, output, self.place() - first)
            self._mark(counts=False)

    def give_up(self, begun: Any) -> None:
        """A call ended with an exception."""
        if begun is not None:
            begun[1].blame("it raised an exception")
            self._watch.close()

    def used(self, place: int) -> None:
        """Backward uses what was saved at a place.

        Autograd has a thread for each device, which is the current one there.
        """
        is_here = torch.cuda.current_device() == self._device
        if self._turns == self._turn and is_here:
            part = bisect.bisect_right(self._bounds, place)
            if not self._backward:
                self._check_inputs()
                part = len(self._bounds)
            if not self._backward or part < self._backward[-1][1]:
                self._backward.append((times.mark(self._device), part))
        super().used(place)

    def finished(self) -> None:
        """Backward is through."""
        if self._end is None and self._backward:
            self._end = times.mark(self._device)

    def close(self) -> None:
        """Ends all that is open."""
        super().close()
        self._watch.close()

    def measured(self, waits: Waits) -> Times | None:
        """The times of the step, which ends now. Waits for the device.

        Args:
            waits: Events before and after each wait for a copy.

        Returns:
            The times; None: no backward was seen.
        """
        if not self._backward:
            return None
        last = times.mark(self._device)
        last.synchronize()
        start = self._backward[0][0]
        self._forward.append((start, True))
        passed, at = 0.0, [0.0]
        for (before, _), (event, counts) in pairwise(self._forward):
            passed += before.elapsed_time(event) if counts else 0.0
            at.append(passed)
        ends = [*(at[i] for i in self._at), passed]
        forward = [b - a for a, b in pairwise([0.0, *ends])]
        end = self._end or last
        return Times(forward, self._backward_ms(end, waits), end.elapsed_time(last))

    def _backward_ms(self, end: torch.cuda.Event, waits: Waits) -> list[float]:
        start = self._backward[0][0]
        begins = [start.elapsed_time(event) for event, _ in self._backward]
        lengths = [b - a for a, b in pairwise([*begins, start.elapsed_time(end)])]
        for before, after in waits:
            i = bisect.bisect_right(begins, start.elapsed_time(before)) - 1
            if i >= 0:
                lengths[i] -= before.elapsed_time(after)
        spent = [0.0] * (len(self._bounds) + 1)
        for (_, part), length in zip(self._backward, lengths, strict=True):
            spent[part] += max(length, 0.0)
        return spent

    def _check_inputs(self) -> None:
        """Where backward begins: inputs are as they were, or may not be used again."""
        for trial in self.trials.values():
            if trial.reason is None and trial.inputs_changed():
                trial.blame("its inputs are written to after it has run")

    def _bound(self, key: Key) -> None:
        self.boundaries.append(key)
        self._at.append(len(self._forward))
        self._mark()

    def _mark(self, counts: bool = True) -> None:
        self._forward.append((times.mark(self._device), counts))


class Running(_Chosen):
    """Has chosen calls run again in backward.

    Attributes:
        skip: Sets the place of the tensor that is saved next: what a call would have
            saved is skipped, so that what comes behind it keeps its place.
    """

    def __init__(
        self,
        place: Callable[[], int],
        skip: Callable[[int], None],
        calls: Iterable[Call],
    ) -> None:
        super().__init__(place, calls)
        self.skip = skip

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A call begins."""
        call = self.call_of(module)
        if call is None or refuses(args, kwargs) or forbids(module) or is_watched():
            return None
        return Rerun(module, args, kwargs), self.place() + call.end - call.first

    def end(self, begun: Any, output: Any) -> None:
        """A call has ended."""
        if begun is not None:
            rerun, place = begun
            rerun.end()
            self.skip(place)

    def give_up(self, begun: Any) -> None:
        """A call ended with an exception."""
        if begun is not None:
            begun[0].close()
