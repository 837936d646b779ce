"""A step that runs again, on tensors that have shapes and no memory.

What ran out of memory is a step of which only a part was seen. In a forked child
(:mod:`oomph.forked.child`), the program's own statements run again from the begin of
the step, twice, under PyTorch's ``FakeTensorMode``: forward, loss, backward and the
optimizer, with all that the program does between. So the peak is that of this program
and this batch, whatever the model is.
"""

from __future__ import annotations

import contextlib
import gc
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from oomph import _torch
from oomph.forked.child import used_s
from oomph.forked.nowhere import write_nowhere
from oomph.replay.again import compiled
from oomph.replay.begin import (
    bring_back_states,
    expect_converted,
    let_go_of_graphs,
    moved_bytes,
    sizes_of,
    take_names,
    undo_backward,
    undo_joins,
    watch_real,
    without_ranks,
)
from oomph.replay.calls import (
    Calls,
    names_of_modules,
    saved_by_class,
    saved_by_path,
    sequence_of,
)
from oomph.replay.change import Change, Method, change_modules, replacing, with_batch
from oomph.replay.engine import Engine, stand_in
from oomph.replay.ledger import Piece
from oomph.replay.metrics import (
    cache_of,
    messages_of,
    shapes_of,
    squares_of,
    states_of,
    without_cache,
    without_earlier_logits,
    without_logits,
    without_states,
)
from oomph.replay.operators.besides import Card
from oomph.replay.operators.counts import Counts
from oomph.replay.position import Position
from oomph.replay.settled import Settled
from oomph.replay.statements import Stretch
from oomph.replay.tracking import Tracker
from oomph.steps import events

LONG_ITERATION = 0.4  # of the time that there is
LEAPS = 3  # iterations that come besides, until one optimizes
LEFT_SHARE = 0.02  # of the peak: what is left behind, from which on it counts


class Replay:
    """A step that runs again; only in a child, which cannot go on afterwards.

    Args:
        stretch: The statements.
        first: Index of the statement to begin with.
        iterations: How often they run: twice where they are in a loop, as the second
            iteration begins with what the first one left.
        device: Index of the device that counts.
        card: What it is.
        counts: Of rows that masks choose.
        gone: As :class:`oomph.replay.search.Search` has them: they are not counted as
            there when it begins, unless something still holds them.
        is_silent: Whether nothing was recorded, by a function further out.
        trains: Whether a backward is expected.
        in_forward: Whether it ended in forward, not in backward or an optimizer's step.
        answer: What statements get that ask something which nobody knows.
        position: Where it ended.
        joined: Tensors that it had joined to, as ``Tracker.rejoined`` has them.
        seconds: Of the CPU, for all of it: after an iteration that took most of them
            comes no other.
    """

    def __init__(
        self,
        stretch: Stretch,
        first: int,
        iterations: int,
        device: int,
        card: Card,
        counts: Counts,
        gone: dict[int, int],
        in_forward: bool,
        is_silent: bool,
        trains: bool,
        answer: bool,
        position: Position,
        joined: dict[int, tuple[int, int]],
        seconds: float,
    ) -> None:
        torch.set_num_threads(1)  # those of the parent are not here: none is waited for
        _torch.leave_cuda()
        write_nowhere()
        self.is_silent, self.seconds = is_silent, seconds
        self.stretch, self.first, self.iterations = stretch, first, iterations
        before = sizes_of(gc.get_objects(), device)
        moved = moved_bytes(gc.get_objects())
        self.names = take_names(stretch, first, gone)
        self._leaps: list[dict[str, int]] | None = None  # iterations to come
        if trains and in_forward and first == 0:
            let_go_of_graphs(gc.get_objects(), self.names, gone, events.began_at)
        gc.collect()
        objects = gc.get_objects()
        self.modules = [o for o in objects if issubclass(type(o), nn.Module)]
        kind = torch.optim.Optimizer
        self.optimizers = [o for o in objects if issubclass(type(o), kind)]
        without_ranks(self.modules)
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        position.know(self.modules)
        self.tracker = Tracker(self.mode, device, card, counts, position, answer)
        self.ledger = self.tracker.ledger
        self.engine = Engine(self.mode, self.tracker)
        self.settled = Settled()
        self.given: set[int] = set()  # pieces that the statements returned
        self.calls = Calls(self.tracker, names_of_modules(self.modules))
        expect_converted(self.mode, self.tracker)
        stand_in(self.engine)
        self.tracker.as_they_came = undo_joins(objects, joined)
        watch_real(self.tracker, objects, gone)
        parameters = [p for m in self.modules for p in m.parameters(recurse=False)]
        self.tracker.regions.parameters = self._pieces_of(parameters)
        self.kept = self.ledger.now_bytes  # nothing else has been counted
        now = sizes_of(objects, device).keys()
        self.there = sorted(now)
        let_go = sum(before[a] for a in before.keys() - now - gone.keys())
        self.ledger.change(-let_go)
        if in_forward:  # else a pass that goes on has them
            freed = _torch.freed_without_cuda()
            in_graphs = sum(gone[a] for a in gone.keys() - now - {*freed})
            self.ledger.change(in_graphs)
            self.kept += in_graphs
        if not in_forward:
            bring_back_states(self.optimizers, self.tracker, moved - let_go)
            undo_backward(objects, self.optimizers, drops_gradients=iterations > 1)
        del objects
        gc.freeze()  # what is there need not be looked at again
        hooks = nn.modules.module
        hooks.register_module_forward_pre_hook(self.calls.enter)
        # Also where what runs again in backward is broken off, as checkpointing does.
        hooks.register_module_forward_hook(self.calls.leave, always_call=True)

    def begin(self, change: dict[str, Any] | None = None) -> dict[str, Any]:
        """Runs it from its begin, as it is or with a change.

        Returns:
            ``peaks``: of each iteration the most bytes beyond what was there, and
            ``ends`` what was left behind it, but for gradients and states; ``settled``:
            of these what the last iteration began without; ``kept``: of passing
            tensors, what was there as it began; ``there``: addresses of all that was;
            ``left``: sizes of what it
            left; ``phase``: of the last peak; ``backwards``: how many there were;
            ``optimizers``: how many the program has; ``optimized``: how often one took
            its step; ``made_line``: the last line that made a model; ``whole``: whether
            the statements came to their end; ``cut``: whether an iteration is missing
            that there was no time for; ``guessed``, ``multiplies`` and
            ``rejoined`` as :class:`Tracker` has them; ``uncounted`` and ``shares`` as
            :class:`Counts` has ``unknown`` and ``shares``; ``gathered``: of what rows
            were taken or written by index, how many it had, and how many were;
            ``collected`` as :class:`Tracker` has it;
            ``messages``: those that went along the edges of a graph that was there;
            ``squares``: the
            sizes of square matrices; ``called``: how often a module was; ``calls``: of
            each class of modules, what their calls saved in bytes, how they are named,
            and whether some hold others (``nested``) or all are PyTorch's own
            (``plain``); ``saved``: path, class and bytes of those modules of libraries
            that themselves save most; ``sequence``: the ``nn.Sequential`` whose call
            saves most; ``cache``: what calls keep for later ones; ``without``: the
            peak, had some things been smaller; ``regions``: as ``Regions.told`` has
            them; ``shapes``: by bytes, of what dtype and
            shape such large tensors were; ``error``: what ended it;
            ``lacks_graph``: whether that was a backward where nothing was recorded.
        """
        wanted = Change.of(change or {})
        self._change_modules(wanted)
        if wanted.batch is not None:
            self._cut(wanted.batch)
        return self._run(wanted, self.iterations)

    def again(self, change: dict[str, Any]) -> dict[str, Any]:
        """Runs one more iteration, with a change, as :meth:`begin` says of all."""
        wanted = Change.of(change)
        self.engine.count = self.engine.optimized = 0
        self._change_modules(wanted)
        iterations = 1
        if wanted.batch is not None:
            part = self._accumulate(wanted, wanted.batch)
            if part["error"]:  # what it worked on is gone
                return part
            self.engine.count = self.engine.optimized = 0
            things = [*self.optimizers, *self.modules]
            with replacing(things, "zero_grad", self._only_after_backward):
                return self._run(wanted, iterations)
        elif self._drop_left() > LEFT_SHARE * self.ledger.peak_bytes:
            iterations = 2  # what the last iteration left was made without the change
        return self._run(wanted, iterations)

    def _change_modules(self, change: Change) -> None:
        with self.mode, self.tracker:
            change_modules(self.modules, change)

    def _drop_left(self) -> int:
        """Forgets what an iteration left for the next to replace; gives its bytes."""
        before = self.ledger.now_bytes
        for name in self.stretch.bound_first(self.first):
            if isinstance(self.names.get(name), torch.Tensor):
                del self.names[name]
        return before - self.ledger.now_bytes

    def _accumulate(
        self, change: Change, batch: tuple[int, int, int]
    ) -> dict[str, Any]:
        """Runs a part of the batch that the optimizer does not yet see."""
        self._cut(batch, carried=True)

        def nothing(_: Method) -> Method:
            return lambda *_, **__: None

        things = [*self.optimizers, *self.modules]
        with (
            replacing(self.optimizers, "step", nothing),
            replacing(things, "zero_grad", nothing),
        ):
            return self._run(change, 1, leaps=0)

    def _only_after_backward(self, method: Method) -> Method:
        """A step of several parts forgets gradients before the first, or at its end."""
        return lambda *a, **k: method(*a, **k) if self.engine.count else None

    def _cut(self, batch: tuple[int, int, int], carried: bool = False) -> None:
        used, bound = self.stretch.names(), self.stretch.bound_first(self.first)
        with self.mode, self.tracker:
            self.names = with_batch(self.names, used, bound, batch, carried)
        self.tracker.cut = batch

    def _run(
        self, change: Change, iterations: int, leaps: int = LEAPS
    ) -> dict[str, Any]:
        whole, error, peaks, ends = False, "", list[int](), list[int]()
        made = 0  # pieces, before the last iteration
        run, began, cut = compiled(self.stretch, self.first), used_s(), False
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.mode)
            stack.enter_context(self.tracker)
            if change.every_call_silent or self.is_silent:
                stack.enter_context(torch.no_grad())
            self.engine.casts = change.autocast
            if change.autocast:
                stack.enter_context(torch.autocast("cuda", torch.bfloat16))
            try:
                for i in range(iterations + leaps):
                    if i > 0 and not self._goes_on(i < iterations):
                        break
                    cut = i > 0 and used_s() - began > LONG_ITERATION * self.seconds
                    if cut:
                        break
                    self.settled.begin()
                    made = len(self.ledger.pieces)
                    self.ledger.mark()
                    stays = self.stretch.is_loop or self.stretch.is_of_module
                    left, given = run(self.names if stays else dict(self.names))
                    self.given |= self._pieces_of(tree_leaves(given))
                    del given
                    left = left if stays else None  # the function's variables go
                    peaks.append(self.ledger.peak_bytes)
                    ends.append(self.ledger.now_bytes - self._settle())
                    whole = True
                    if stays:
                        if left is None:  # the function returned
                            break
                        self.names = left
            except Exception as failure:
                lines = traceback.format_tb(failure.__traceback__)[-3:]
                lines += traceback.format_exception_only(failure)
                error = "".join(lines).strip()
                if not whole:
                    peaks.append(self.ledger.peak_bytes)
        tracker, ledger, engine = self.tracker, self.ledger, self.engine
        return {
            "peaks": peaks,
            "ends": ends,
            "settled": self.settled.missing_bytes,
            "kept": self.kept,
            "there": self.there,
            "left": sorted({p.size_bytes for p in ledger.pieces[made:] if not p.end}),
            "phase": ledger.peak_phase,
            "backwards": engine.count,
            "optimizers": len(self.optimizers),
            "optimized": engine.optimized,
            "made_line": engine.made_line,
            "whole": whole,
            "cut": cut,
            "guessed": tracker.guessed,
            "multiplies": tracker.multiplies,
            "rejoined": tracker.rejoined,
            "uncounted": tracker.counts.unknown,
            "shares": tracker.counts.shares,
            "gathered": sorted(tracker.taken | tracker.added),
            "messages": messages_of(tracker),
            "squares": sorted(squares_of(tracker)),
            "times": sorted(tracker.times),
            "brought": tracker.brought,
            "collected": sorted(tracker.collected),
            "error": error,
            "lacks_graph": engine.lacks_graph,
            "called": self.calls.count,
            "calls": saved_by_class(self.calls, self.modules),
            "saved": saved_by_path(self.calls, self.modules),
            "sequence": sequence_of(self.calls, self.modules),
            "cache": cache_of(tracker),
            "without": self._without(),
            "shapes": shapes_of(tracker),
            "regions": tracker.regions.told(self._wanted()),
        }

    def _pieces_of(self, values: Iterable[Any]) -> set[int]:
        """The identities of those tensors' pieces."""
        tensors = (value for value in values if isinstance(value, torch.Tensor))
        return {id(self.ledger.piece_of(tensor)) for tensor in tensors}

    def _wanted(self) -> set[int]:
        """Identities of the pieces that are given on, or there for more than a turn."""
        anew = self.stretch.bound_first(self.first)
        passing = [self.names.get(name) for name in anew]
        others = [value for n, value in self.names.items() if n not in anew]
        others += [v for v in passing if not isinstance(v, torch.Tensor)]
        held = self._pieces_of(tree_leaves(others))
        alive = {id(piece) for piece in self.ledger.pieces if piece.end is None}
        return self.given | held | alive - self._pieces_of(passing)

    def _goes_on(self, is_due: bool) -> bool:
        """Whether another iteration comes; one that optimizes, if none has so far.

        Args:
            is_due: It comes in any case.
        """
        waits = self.optimizers and self.engine.count and not self.engine.optimized
        if not waits or not self.stretch.is_loop:
            return is_due
        if self._leaps is None:
            self._leaps = self.stretch.leaps(self.names)
        then = self._leaps.pop(0) if self._leaps else {}
        self.names.update(then)
        return is_due or bool(then)

    def _without(self) -> dict[str, Any]:
        """The peak, had some things been smaller."""
        tables = [m for m in self.modules if "num_embeddings" in m.__dict__]
        parameters = [  # but those that are heads as well: these read all rows
            p
            for table in tables
            for p in table.parameters()
            if id(self.ledger.piece_of(p)) not in self.tracker.multiplied
        ]
        optimizers = [*self.optimizers, *self.engine.stepped.values()]
        return {
            **without_logits(self.tracker),
            **without_states(self.tracker, optimizers, parameters),
            **without_cache(self.tracker),
            **without_earlier_logits(self.tracker, {m.num_embeddings for m in tables}),
        }

    def _settle(self) -> int:
        """Bytes of gradients and states that it made, at the end of an iteration."""
        parameters = [p for m in self.modules for p in m.parameters(recurse=False)]
        gradients = [p.grad for p in parameters if p.grad is not None]
        found = [
            sum({id(piece): piece.size_bytes for piece in pieces}.values())
            for pieces in map(self._made, (gradients, states_of(self.optimizers)))
        ]
        return self.settled.end(*found)

    def _made(self, tensors: Iterable[torch.Tensor]) -> Iterator[Piece]:
        """The pieces of tensors that were not there before."""
        pieces = (self.ledger.piece_of(tensor) for tensor in tensors)
        return (piece for piece in pieces if piece is not None and not piece.addr)
