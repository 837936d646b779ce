"""Has calls run again in backward from the very first step on.

Where nothing may leave for the host, no step can show first what it needs with all
kept. So each call that saves enough is tried as soon as it has ended, and if it may run
again, its output is made anew by a forward that keeps its inputs alone: what the first
saved is free before the next call begins. Calls within calls come first; one around
them follows if that frees enough more. The step then takes several times as long, and
shows all that a plan is made from, as if everything had been kept.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from oomph.base.attempts import attempt
from oomph.base.log import logger
from oomph.recompute.calls import (
    Call,
    CallTree,
    Key,
    Root,
    size_of,
    storages_in,
    tensors_in,
)
from oomph.recompute.contents import same_bits
from oomph.recompute.followers import Follower, Host
from oomph.recompute.purity import Trial, Trials
from oomph.recompute.stopwatch import Stopwatch, Times, Waits

_MUCH = 3  # part of what a call may save at most that is much
_LITTLE = 8  # part of what it saves that is little
_MOST_CALLS = 10_000  # of turns that nobody ends by a backward


@dataclass
class _Open:
    """A call that goes on."""

    call: Call
    trial: Trial
    arguments: tuple[Any, Any]
    first: int  # place
    held: dict[int, tuple[int, int]] = field(default_factory=dict)  # bytes, device
    saved_bytes: int = 0


@dataclass
class _Converted:
    """A call that runs again in backward.

    Attributes:
        first: The place of what it saved first,
        end: and the place after its last.
        freed_bytes: By which less is in use until it does.
        trial: What is known of it.
    """

    first: int
    end: int
    freed_bytes: int
    trial: Trial


class Turn:
    """What one forward showed, and the backward after it.

    Attributes:
        tree: Of its calls.
        stopwatch: Of its parts: a boundary for each mark of the tree.
        trials: Of the calls that were tried, by their keys.
        converted: Those that run again, none within another.
        roots: The outermost calls, by their keys.
    """

    def __init__(self, place: int, device: int) -> None:
        self.tree = CallTree(place)
        self.stopwatch = Stopwatch(device)
        self.trials: dict[Key, Trial] = {}
        self.converted: list[_Converted] = []
        self.roots: dict[Key, Root] = {}
        self.stopwatch.mark()

    @cached_property
    def bounds(self) -> list[int]:
        """The place of each boundary; forward has ended."""
        calls = self.tree.calls
        return [calls[i].end if e else calls[i].first for i, e in self.tree.marks]

    def measured(self, keys: set[Key], waits: Waits) -> Times | None:
        """The times of the parts between these calls, without what ran again.

        Args:
            keys: Of the calls.
            waits: As of a stopwatch.
        """
        calls, marks = self.tree.calls, self.tree.marks
        which = [i for i, (call, _) in enumerate(marks) if calls[call].key in keys]
        bounds = [self.bounds[i] for i in which]
        found = self.stopwatch.measured(bounds, which, waits)
        if found is not None:
            for call in self.converted:
                part = bisect_right(bounds, call.first)
                again_ms = call.trial.again_ms
                found.backward[part] = max(found.backward[part] - again_ms, 0.0)
        return found


class Converting(Follower):
    """Has each call that saves enough run again in this step's backward, if it may.

    Args:
        host: Who plans.

    Attributes:
        turns: Of the step.
        has_failed: Whether a call raised an exception: the step is no example.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.turns: list[Turn] = []
        self.has_failed = False
        self._calls: list[_Open] = []
        # Storages that the turn has saved: known so, none takes another's identity.
        self._seen: dict[int, StorageWeakRef] = {}
        self._waiting: list[_Converted] = []  # that have not run again yet
        self._inputs: frozenset[int] = frozenset()  # of calls that were converted
        self._is_converting = False
        self._device = 0
        self._least_bytes = self._most_bytes = 0
        self._watch = Trials(host.aside, self._device)

    def wants(self, module: nn.Module) -> bool:
        """Whether the calls of a module are of interest.

        Before CUDA is in use none is: to ask for its state would begin it.
        """
        return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

    def turn(self) -> None:
        """Another forward begins."""
        if self.turns:
            self.turns[-1].stopwatch.finished()
        self._device = torch.cuda.current_device()
        self._least_bytes, self._most_bytes = self.host.sizes(self._device)
        self._watch = Trials(self.host.aside, self._device)
        self._seen.clear()
        self._calls.clear()
        self._inputs = frozenset()
        self.turns.append(Turn(self.host.place(), self._device))

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A call begins."""
        if not self._calls and len(self.turns[-1].tree.calls) > _MOST_CALLS:
            self.turn()
            del self.turns[-2]  # whose outputs nobody uses
        turn = self.turns[-1]
        turn.stopwatch.bound()
        turn.tree.enter(module, args, kwargs, self.host.place())
        trial = self._watch.begin(module, args, kwargs)
        if trial.has_hooks:  # what they change is not known yet
            trial.blame("it has hooks, and recompute:always does not wait for them")
        call = turn.tree.calls[-1]
        if call.parent < 0:
            turn.roots[call.key] = Root(call.module, size_of(args, kwargs))
        begun = _Open(call, trial, (args, kwargs), self.host.place())
        self._calls.append(begun)
        turn.stopwatch.mark(counts=False)
        return begun

    def end(self, begun: Any, output: Any) -> Any:
        """A call has ended; gives its output as made by one that runs again."""
        turn = self._ended(begun)
        turn.tree.leave(begun.trial.module, self.host.place())
        left = {
            identity: held
            for identity, held in begun.held.items()
            if identity not in begun.call.inputs
        }
        # What it returns lives on, whoever saves it.
        returned = storages_in(output)
        gain_bytes = sum(
            size_bytes
            for identity, (size_bytes, device) in left.items()
            if device == self._device and identity not in returned
        )
        replaced = None
        if self._is_worth(gain_bytes, begun.saved_bytes):
            turn.trials[begun.call.key] = begun.trial
            self._watch.end(begun.trial, output, self.host.place() - begun.first)
            if begun.trial.reason is None:
                replaced = self._convert(begun, output)
        else:
            self._watch.drop(begun.trial)
        if replaced is not None:
            self._note_converted(turn, begun, gain_bytes)
            self._inputs |= begun.call.inputs
            for old, new in zip(tensors_in(output), tensors_in(replaced), strict=True):
                turn.tree.exchange(old, new)
            begun.held = {
                identity: held
                for identity, held in begun.held.items()
                if identity in begun.call.inputs
            }
        if self._calls:
            self._calls[-1].held.update(begun.held)
            self._calls[-1].saved_bytes += begun.saved_bytes
        turn.stopwatch.mark(counts=False)
        return replaced

    def _is_worth(self, gain_bytes: int, saved_bytes: int) -> bool:
        """Whether a call is to be tried.

        Backward holds at once all that it saves. If that is much, as of a whole model,
        those within it are better, unless they free little.
        """
        if not self._least_bytes <= gain_bytes <= saved_bytes <= self._most_bytes:
            return False
        is_much = saved_bytes > self._most_bytes // _MUCH
        return not is_much or gain_bytes >= saved_bytes / _LITTLE

    def _ended(self, begun: _Open) -> Turn:
        """A call has ended, and with it those within."""
        turn = self.turns[-1]
        turn.stopwatch.bound()
        while self._calls and self._calls.pop() is not begun:
            pass
        return turn

    def _convert(self, begun: _Open, output: Any) -> Any:
        args, kwargs = begun.arguments
        self._is_converting = True
        try:
            with attempt(), self.host.aside(), self.host.inputs_at(begun.first):
                again = begun.trial.run_to_repeat(args, kwargs)
            is_same = same_bits(output, again)
        except torch.OutOfMemoryError:
            begun.trial.blame("there is no room to run it twice")
            return None
        except Exception as error:  # whatever a module raises that is not run so often
            logger.debug("a call cannot run again: %s", error)
            begun.trial.blame(f"a third forward raised {type(error).__name__}")
            return None
        finally:
            self._is_converting = False
        if not is_same:
            begun.trial.blame("a third forward gave other values")
            return None
        return again

    def _note_converted(self, turn: Turn, begun: _Open, gain_bytes: int) -> None:
        """What ran again within it does so no more by itself."""
        freed_bytes = gain_bytes
        while turn.converted and turn.converted[-1].first >= begun.first:
            freed_bytes += turn.converted.pop().freed_bytes
        while self._waiting and self._waiting[-1].first >= begun.first:
            self._waiting.pop()
        converted = _Converted(begun.first, self.host.place(), freed_bytes, begun.trial)
        turn.converted.append(converted)
        self._waiting.append(converted)
        self.host.note_freed(self._device, gain_bytes)

    def give_up(self, begun: Any) -> None:
        """A call ended with an exception."""
        turn = self._ended(begun)
        turn.tree.leave(begun.trial.module, self.host.place())
        begun.trial.blame("it raised an exception")
        self._watch.close()
        self.has_failed = True

    def saved(self, tensor: torch.Tensor) -> None:
        """A tensor is saved."""
        is_other = threading.get_ident() != self._thread or self._is_new_turn
        if is_other or self._is_converting:
            return
        self.turns[-1].tree.note(tensor)
        storage = tensor.untyped_storage()
        if self._calls and storage._cdata not in self._seen:
            self._seen[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            size_bytes = storage.nbytes()
            index = tensor.device.index
            self._calls[-1].held[storage._cdata] = size_bytes, index
            self._calls[-1].saved_bytes += size_bytes

    def used(self, place: int) -> None:
        """Backward uses what was saved at a place."""
        if not self.turns:
            return
        turn = self.turns[-1]
        if not self._is_new_turn:
            turn.tree.end_forward(self._inputs)
        if turn.stopwatch.is_here():
            turn.stopwatch.used(place, turn.bounds)
        i = bisect_right(self._waiting, place, key=lambda call: call.first) - 1
        if i >= 0 and place < self._waiting[i].end:
            self.host.note_freed(self._device, -self._waiting.pop(i).freed_bytes)
        super().used(place)

    def finished(self) -> None:
        """Backward is through."""
        if self.turns:
            self.turns[-1].stopwatch.finished()

    def close(self) -> None:
        """Ends all that is open."""
        super().close()
        self._watch.close()


def all_trials(turns: list[Turn]) -> dict[Key, Trial]:
    """Of each call, the trial that says most: why it is to be left alone."""
    trials: dict[Key, Trial] = {}
    for key, trial in (pair for turn in turns for pair in turn.trials.items()):
        if key not in trials or trial.reason is not None:
            trials[key] = trial
    return trials


def rest_ms(turn: Turn, turns: list[Turn]) -> float:
    """What a step takes beside a turn, without what ran again in the others."""
    whole = {id(t): t.measured(set(), ()) for t in turns}
    others = (spent for t, spent in whole.items() if t != id(turn) and spent)
    ms = sum(sum(spent.forward) + sum(spent.backward) for spent in others)
    last = whole[id(turns[-1])]
    return ms + (last.before + last.after if last else 0.0)
