"""Who follows the calls of modules through a step: to watch, to try, to run again.

One thread is followed, the first that calls a module. Calls end in the order in which
they began, from the last; what an exception cut short ends with those around it.

While all calls are watched, each call of a module costs a look at what it saves, and
while some are tried, a second run of each. Once calls have been chosen, only these are
followed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn

from oomph.recompute import own_hooks
from oomph.recompute.calls import Call, CallTree, Key, Numbers
from oomph.recompute.purity import Trial, Trials, forbids, is_watched, refuses
from oomph.recompute.rerun import Rerun
from oomph.recompute.stopwatch import Stopwatch, Times, Waits


class Host(Protocol):
    """Who plans, as far as those that follow calls need it."""

    def place(self) -> int:
        """Gives the place of the tensor that is saved next."""

    def aside(self) -> AbstractContextManager[None]:
        """Gives a context for what the program itself would not run."""

    def skip(self, place: int) -> None:
        """The next tensor that is saved has this place, or a later one."""

    def inputs_at(self, place: int) -> AbstractContextManager[None]:
        """Meanwhile what is saved are inputs, which have this place."""

    def note_freed(self, device: int, size_bytes: int) -> None:
        """So much less is in use on a device than if all were kept."""

    def convert(self) -> Follower:
        """Gives a follower of all calls that are to come, in place of the present."""

    def used_bytes(self) -> int:
        """Bytes in use on the device whose calls run again."""

    def sizes(self, device: int) -> tuple[int, int]:
        """Bytes that a call must free to be worth a trial, and may save at most."""


class Follower:
    """Follows calls; what it does with each is its kind's.

    Args:
        host: Who plans.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
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

    def end(self, begun: Any, output: Any) -> Any:
        """A call has ended; gives what takes the place of its output, or None."""
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
            self.turn()  # may fail: then the next call begins it
            self._is_new_turn = False
        self._open.append((module, self.begin(module, args, kwargs)))

    def leave(self, module: nn.Module, output: Any, failed: bool) -> Any:
        """A call has ended that may have been followed.

        Returns:
            What takes the place of its output; None: nothing does.
        """
        if threading.get_ident() != self._thread:
            return None
        if not any(module is opened for opened, _ in self._open):
            return None
        while self._open:
            opened, begun = self._open.pop()
            if opened is module and not failed:
                return self.end(begun, output)
            self.give_up(begun)
            if opened is module:
                break
        if not self._open:
            self._is_new_turn = True  # nothing of what failed will be used
        return None

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

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.trees: list[CallTree] = []

    def wants(self, module: nn.Module) -> bool:
        """Whether the calls of a module are of interest."""
        return True

    def turn(self) -> None:
        """Another forward begins."""
        self.trees.append(CallTree(self.host.place()))

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A call begins."""
        self.trees[-1].enter(module, args, kwargs, self.host.place())
        return module

    def end(self, begun: Any, output: Any) -> None:
        """A call has ended."""
        self.trees[-1].leave(begun, self.host.place())

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
    """Follows calls that were seen before, and times one forward and its backward.

    Args:
        host: Who plans.
        calls: These, by their keys.
        turn: Which forward of the step, from 1, of those that call one of these.
        device: Whose times are taken.

    Attributes:
        stopwatch: It.
    """

    def __init__(
        self, host: Host, calls: Iterable[Call], turn: int, device: int
    ) -> None:
        super().__init__(host)
        self._turn, self._turns = turn, 0
        self._bounds: list[int] = []  # places of boundaries that are timed
        self.stopwatch = Stopwatch(device)
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
        self._turns += 1
        if self._turns == self._turn:
            self.stopwatch.mark()
        elif self._turns > self._turn:
            self.stopwatch.finished()

    def used(self, place: int) -> None:
        """Backward uses what was saved at a place."""
        watch = self.stopwatch
        is_timed = self._turns == self._turn
        if is_timed and (self._bounds or not watch.is_in_backward) and watch.is_here():
            watch.used(place, self._bounds)
        super().used(place)

    def finished(self) -> None:
        """Backward is through."""
        self.stopwatch.finished()

    def call_of(self, module: nn.Module) -> Call | None:
        """The call that begins now, if it was seen before."""
        call = self._calls.get(self._numbers.key(module))
        return call if call is not None and call.module() is module else None


class Trying(_Chosen):
    """Watches calls, and runs each again, to see whether it may be.

    Args:
        host: Who plans.
        calls: These.
        bounds: The places of their boundaries, in the order of time, from the first
            place of the step.
        turn: In which forward of the step, from 1.
        device: Whose times are taken.

    Attributes:
        trials: By the keys of the calls.
        boundaries: Which calls began and ended, in the order of time.
    """

    def __init__(
        self,
        host: Host,
        calls: Iterable[Call],
        bounds: list[int],
        turn: int,
        device: int,
    ) -> None:
        super().__init__(host, calls, turn, device)
        self.trials: dict[Key, Trial] = {}
        self.boundaries: list[Key] = []
        self._bounds = [host.place() - 1 + bound for bound in bounds]
        self._watch = Trials(host.aside, device)

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A call begins."""
        call = self.call_of(module)
        if call is None or self._turns != self._turn:
            return None
        self._bound(call.key)
        trial = self.trials[call.key] = self._watch.begin(module, args, kwargs)
        self.stopwatch.mark(counts=False)
        return call.key, trial, self.host.place()

    def end(self, begun: Any, output: Any) -> None:
        """A call has ended: it runs again."""
        if begun is not None:
            key, trial, first = begun
            self._bound(key)
            self._watch.end(trial, output, self.host.place() - first)
            self.stopwatch.mark(counts=False)

    def give_up(self, begun: Any) -> None:
        """A call ended with an exception."""
        if begun is not None:
            begun[1].blame("it raised an exception")
            self._watch.close()

    def used(self, place: int) -> None:
        """Backward uses what was saved at a place."""
        watch = self.stopwatch
        if self._turns == self._turn and not watch.is_in_backward and watch.is_here():
            self._look_again()
        super().used(place)

    def close(self) -> None:
        """Ends all that is open."""
        super().close()
        self._watch.close()

    def measured(self, waits: Waits) -> Times | None:
        """The times of the parts of the step, as a stopwatch gives them."""
        which = range(len(self.boundaries))
        return self.stopwatch.measured(self._bounds, which, waits)

    def _look_again(self) -> None:
        """Where backward begins: all is as it was, or a call may not run again."""
        for trial in self.trials.values():
            trial.look_again()

    def _bound(self, key: Key) -> None:
        self.boundaries.append(key)
        self.stopwatch.bound()


class Running(_Chosen):
    """Has chosen calls run again in backward.

    What a call would have saved is skipped, so that what comes behind it keeps its
    place.
    """

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A call begins."""
        call = self.call_of(module)
        if call is None or not self.may_run(call):
            return None
        if refuses(args, kwargs) or forbids(module) or is_watched():
            return None
        if own_hooks.others(module) != call.hooks:  # those it was tried with
            return None
        place = self.host.place() + call.end - call.first
        return Rerun(module, args, kwargs), place

    def may_run(self, call: Call) -> bool:
        """Whether a call is to run again that begins now."""
        return True

    def end(self, begun: Any, output: Any) -> None:
        """A call has ended."""
        if begun is not None:
            rerun, place = begun
            rerun.end()
            self.host.skip(place)

    def give_up(self, begun: Any) -> None:
        """A call ended with an exception."""
        if begun is not None:
            begun[0].close()
