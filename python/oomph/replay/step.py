"""A step that runs again, on tensors that have shapes and no memory.

What ran out of memory is a step of which only a part was seen. In a forked child
(:mod:`oomph.replay.child`), the program's own statements run again from the begin of
the step, twice, under PyTorch's ``FakeTensorMode``: forward, loss, backward and the
optimizer, with all that the program does between. So the peak is that of this program
and this batch, whatever the model is.
"""

from __future__ import annotations

import contextlib
import gc
import math
import re
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from oomph.memory.sites import is_user
from oomph.replay.change import Change, change_modules, with_batch
from oomph.replay.engine import Engine, stand_in
from oomph.replay.statements import Stretch, take_variables
from oomph.replay.tracking import Cached, Piece, Tracker

GROWTH_MIN = 1 << 20  # bytes that a module's call saves, to be told
LEFT_SHARE = 0.02  # of the peak: what is left behind, from which on it counts
SAVERS = 3  # modules that are told
CACHED_MIN = 4  # keys and values of two layers
LONGER_MAX = 0.25  # times as long: what one call joins to them
DEGREE = 2  # edges of a node, from which on a graph's messages are its large tensors
PARTS = (2, 4, 8, 16, 32, 64)  # of a graph
SEGMENTS = (2, 4, 8)  # of a sequence
CHUNKS = 8  # that a loss is cut into
WIDE = 4096  # choices from which on logits are large


@dataclass
class Calls:
    """What the calls of each class of modules save for backward."""

    tracker: Tracker
    names: dict[int, str]
    found: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    parts: set[str] = field(default_factory=set)
    alone: dict[int, int] = field(default_factory=dict)  # without the calls within
    writers: set[int] = field(default_factory=set)  # that write to what they are given
    count: int = 0
    _open: list[list[int]] = field(default_factory=list)  # then, saved within, version

    def enter(self, module: nn.Module, args: Any) -> None:
        """A call begins."""
        self.count += 1
        self._open.append([self.tracker.now_bytes, 0, _version(args)])
        self.tracker.enter_call()
        has_time = isinstance(module, (nn.RNNBase, nn.MultiheadAttention))
        if has_time and not module.batch_first and args and args[0].ndim == 3:
            self.tracker.times.add(args[0].shape[0])

    def leave(self, module: nn.Module, args: Any, _: Any) -> None:
        """A call ends."""
        self.tracker.leave_call()
        begun, within, version = self._open.pop() if self._open else (0, 0, 0)
        if version != _version(args):
            self.writers.add(id(module))
        grown = self.tracker.now_bytes - begun
        if self._open:
            self._open[-1][1] += grown
        if torch.is_grad_enabled() and self.tracker.runs == "forward":
            name = type(module).__qualname__
            if module.__dict__.get("_modules"):
                self.parts.add(name)
            kept = self.found[name]
            kept[id(module)] = max(kept.get(id(module), 0), grown)
            self.alone[id(module)] = max(self.alone.get(id(module), 0), grown - within)


def _version(args: Any) -> int:
    """How often the first argument was written to."""
    first = args[0] if args else None
    if not isinstance(first, torch.Tensor) or first.is_inference():
        return 0
    return int(first._version)


@dataclass
class Settled:
    """Gradients and states that turns leave: as many, however many turns there are.

    Where gradients are accumulated some turns leave them, others states: in time a turn
    begins with both.

    Attributes:
        gradients: The most bytes that a turn left.
        states: The same.
        now: Both, as the last turn left them.
        begun: As the last turn began.
        turns: How many have ended.
    """

    gradients: int = 0
    states: int = 0
    now: int = 0
    begun: int = 0
    turns: int = 0

    def begin(self) -> None:
        """A turn begins."""
        self.begun = self.now

    def end(self, gradients: int, states: int) -> int:
        """It has left so many bytes; gives their sum."""
        self.gradients = max(self.gradients, gradients)
        self.states = max(self.states, states)
        self.turns += 1
        self.now = gradients + states
        return self.now

    @property
    def missing_bytes(self) -> int:
        """What the last turn began without, though another one will have it."""
        most = self.gradients + self.states if self.turns > 1 else 0
        return max(0, most - self.begun)


class Replay:
    """A step that runs again; only in a child, which cannot go on afterwards.

    Args:
        stretch: The statements.
        first: Index of the statement to begin with.
        turns: How often they run: twice where they are in a loop, as the second turn
            begins with what the first one left.
        device: Index of the device that counts.
        gone: Addresses of blocks that are not counted as there when it begins: what
            the step has made so far.
        is_silent: Whether nothing was recorded, by a function further out.
        in_forward: Whether it ended in forward, not in backward or an optimizer's step.
    """

    def __init__(
        self,
        stretch: Stretch,
        first: int,
        turns: int,
        device: int,
        gone: frozenset[int],
        in_forward: bool,
        is_silent: bool,
    ) -> None:
        torch.set_num_threads(1)  # those of the parent are not here: none is waited for
        self.is_silent = is_silent
        self.stretch, self.first, self.turns = stretch, first, turns
        self.names = _take(stretch, first, gone)
        gc.collect()
        objects = gc.get_objects()
        self.modules = [o for o in objects if issubclass(type(o), nn.Module)]
        kind = torch.optim.Optimizer
        self.optimizers = [o for o in objects if issubclass(type(o), kind)]
        _without_ranks(self.modules)
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.tracker = Tracker(self.mode, device)
        self.engine = Engine(self.mode, self.tracker)
        self.settled = Settled()
        self.calls = Calls(self.tracker, _names_of_modules(self.modules))
        _expect_converted(self.mode, self.tracker)
        stand_in(self.engine)
        if is_silent and in_forward:
            _undo_joins(self._loose(objects))
        _watch_real(self.tracker, objects, gone)
        del objects
        if not in_forward:
            _drop_half_made(self.optimizers)
        gc.freeze()  # what is there need not be looked at again
        hooks = nn.modules.module
        hooks.register_module_forward_pre_hook(self.calls.enter)
        hooks.register_module_forward_hook(self.calls.leave)

    def begin(self, change: dict[str, Any] | None = None) -> dict[str, Any]:
        """Runs it from its begin, as it is or with a change.

        Returns:
            ``peaks``: of each turn the most bytes beyond what was there, and ``ends``
            what was left behind it, but for gradients and states; ``settled``: of
            these what the last turn began without; ``left``: sizes of what it left;
            ``phase``: of the last peak; ``backwards``: how many there were;
            ``optimizers``: how many the program has; ``optimized``: how often one took
            its step; ``made_line``: the last line that made a model;
            ``whole``: whether the statements came to their end; ``guessed`` as
            :class:`Tracker` has it; ``gathered``: of what rows were taken or written by
            index, how many it had, and how many were; ``messages``: those that went
            along the edges of a graph that was there; ``squares``: the sizes of square
            matrices; ``called``: how often a module was; ``calls``: of each class of
            modules, what their calls saved in bytes, how they are named, and whether
            some hold others (``nested``) or all are PyTorch's own (``plain``);
            ``saved``: path, class and bytes of those modules of libraries that
            themselves save most; ``sequence``: the ``nn.Sequential``
            whose call saves most; ``cache``: what calls keep for later ones;
            ``without``: the peak, had some things been smaller; ``shapes``: by bytes,
            of what dtype and shape such large tensors were; ``error``: what ended
            it.
        """
        wanted = Change.of(change or {})
        self._change_modules(wanted)
        if wanted.batch is not None:
            self._cut(wanted.batch)
        return self._run(wanted, self.turns)

    def again(self, change: dict[str, Any]) -> dict[str, Any]:
        """Runs one more turn, with a change, as :meth:`begin` tells of all."""
        wanted = Change.of(change)
        self.engine.count = self.engine.optimized = 0
        self._change_modules(wanted)
        turns = 1
        if wanted.batch is not None:
            self._accumulate(wanted, wanted.batch)
        elif self._drop_left() > LEFT_SHARE * self.tracker.peak_bytes:
            turns = 2  # what the last turn left was made without the change
        return self._run(wanted, turns)

    def _loose(self, objects: list[Any]) -> list[torch.Tensor]:
        """Tensors that belong to no module, no gradient and no optimizer."""
        tensors = [o for o in objects if issubclass(type(o), torch.Tensor)]
        own = [t.grad for t in tensors if t.is_leaf and t.grad is not None]
        own += (b for module in self.modules for b in module.buffers(recurse=False))
        own += _states(self.optimizers)
        known = {_addr(t) for t in (*own, *(t for t in tensors if t.requires_grad))}
        return [t for t in tensors if _addr(t) not in known]

    def _change_modules(self, change: Change) -> None:
        with self.mode, self.tracker:
            change_modules(self.modules, change)

    def _drop_left(self) -> int:
        """Forgets what a turn left for the next one to replace; gives its bytes."""
        before = self.tracker.now_bytes
        for name in self.stretch.bound_first(self.first):
            if isinstance(self.names.get(name), torch.Tensor):
                del self.names[name]
        return before - self.tracker.now_bytes

    def _accumulate(self, change: Change, batch: tuple[int, int, int]) -> None:
        """Runs a part of the batch that the optimizer does not yet see."""
        self._cut(batch)
        held = [(o, name) for o in self.optimizers for name in ("step", "zero_grad")]
        held += [(m, "zero_grad") for m in self.modules]
        for thing, name in held:
            thing.__dict__[name] = lambda *_, **__: None
        self._run(change, 1)
        for thing, name in held:
            del thing.__dict__[name]

    def _cut(self, batch: tuple[int, int, int]) -> None:
        used, bound = self.stretch.names(), self.stretch.bound_first(self.first)
        with self.mode, self.tracker:
            self.names = with_batch(self.names, used, bound, batch)
        self.tracker.cut = batch

    def _run(self, change: Change, turns: int) -> dict[str, Any]:
        whole, error, peaks, ends = False, "", list[int](), list[int]()
        made = 0  # pieces, before the last turn
        run = self.stretch.compile(self.first)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.mode)
            stack.enter_context(self.tracker)
            if change.every_call_silent or self.is_silent:
                stack.enter_context(torch.no_grad())
            self.engine.casts = change.autocast
            if change.autocast:
                stack.enter_context(torch.autocast("cuda", torch.bfloat16))
            try:
                for _ in range(turns):
                    self.settled.begin()
                    made = len(self.tracker.pieces)
                    self.tracker.mark()
                    stays = self.stretch.is_loop or self.stretch.is_of_module
                    left = run(self.names if stays else dict(self.names))
                    peaks.append(self.tracker.peak_bytes)
                    ends.append(self.tracker.now_bytes - self._settle())
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
                    peaks.append(self.tracker.peak_bytes)
        tracker, engine = self.tracker, self.engine
        return {
            "peaks": peaks,
            "ends": ends,
            "settled": self.settled.missing_bytes,
            "left": sorted({p.size_bytes for p in tracker.pieces[made:] if not p.end}),
            "phase": tracker.peak_phase,
            "backwards": engine.count,
            "optimizers": len(self.optimizers),
            "optimized": engine.optimized,
            "made_line": engine.made_line,
            "whole": whole,
            "guessed": tracker.guessed,
            "gathered": sorted(tracker.taken | tracker.added),
            "messages": _messages(tracker),
            "squares": sorted(_squares(tracker)),
            "times": sorted(tracker.times),
            "error": error,
            "called": self.calls.count,
            "calls": _summary(self.calls, self.modules),
            "saved": _saved(self.calls, self.modules),
            "sequence": _sequence(self.calls, self.modules),
            "cache": _cache(tracker),
            "without": self._without(),
            "shapes": _shapes(tracker),
        }

    def _without(self) -> dict[str, Any]:
        """The peak, had some things been smaller."""
        tables = [m for m in self.modules if "num_embeddings" in m.__dict__]
        parameters = [p for table in tables for p in table.parameters()]
        optimizers = [*self.optimizers, *self.engine.stepped.values()]
        return {
            **_without_logits(self.tracker),
            **_without_states(self.tracker, optimizers, parameters),
            **_without_cache(self.tracker),
        }

    def _settle(self) -> int:
        """Bytes of gradients and states that it made, at the end of a turn."""
        parameters = [p for m in self.modules for p in m.parameters(recurse=False)]
        gradients = [p.grad for p in parameters if p.grad is not None]
        found = [
            sum({id(piece): piece.size_bytes for piece in pieces}.values())
            for pieces in map(self._made, (gradients, _states(self.optimizers)))
        ]
        return self.settled.end(*found)

    def _made(self, tensors: Iterable[torch.Tensor]) -> Iterator[Piece]:
        """The pieces of tensors that were not there before."""
        pieces = (self.tracker.piece_of(tensor) for tensor in tensors)
        return (piece for piece in pieces if piece is not None and not piece.addr)


# ---- What is there when it begins


def _drop_half_made(optimizers: list[Any]) -> None:
    """Optimizers make their state where there is none; the last may be half made."""
    for optimizer in optimizers:
        if optimizer.state:
            del optimizer.state[[*optimizer.state][-1]]


def _undo_joins(tensors: list[torch.Tensor]) -> None:
    """Cuts what the failed call had joined to, as a cache's first layers, as the rest.

    That are tensors of shapes like those of others, but a bit longer in one dimension.
    """
    alike = defaultdict(list)
    for tensor in tensors:
        if tensor.is_cuda and tensor.ndim > 2 and not tensor.requires_grad:
            for dim in range(1, tensor.ndim):
                rest = (*tensor.shape[:dim], *tensor.shape[dim + 1 :])
                alike[dim, rest, tensor.dtype].append(tensor)
    for (dim, *_), found in alike.items():
        lengths = {tensor.shape[dim] for tensor in found}
        if len(found) < CACHED_MIN or len(lengths) != 2:
            continue
        if max(lengths) - min(lengths) > LONGER_MAX * min(lengths):
            continue
        for tensor in found:
            with torch.inference_mode():
                tensor.data = tensor.narrow(dim, 0, min(lengths))


def _without_ranks(modules: list[nn.Module]) -> None:
    """DDP hands its calls on: what it sends to others has no memory of its own."""
    for module in modules:
        if "reducer" in module.__dict__:
            module.__dict__["forward"] = module.module


def _expect_converted(mode: FakeTensorMode, tracker: Tracker) -> None:
    """What is made of a real tensor takes no memory of its own."""
    converter = mode.fake_tensor_converter
    convert = converter.from_real_tensor

    def expected(*args: Any, **kwargs: Any) -> FakeTensor:
        made = convert(*args, **kwargs)
        tracker.expect(made, next(a for a in args if isinstance(a, torch.Tensor)))
        return made

    converter.from_real_tensor = expected  # type: ignore[method-assign]


def _take(stretch: Stretch, first: int, made: frozenset[int]) -> dict[str, Any]:
    """The variables of the frame, without those that the step makes anew.

    Those of the calls that the frame waited for are gone.
    """
    for frame in stretch.inner:
        take_variables(frame, is_inner=True)
    names = take_variables(stretch.frame)
    for name in stretch.bound_first(first):
        value = names.get(name)
        if isinstance(value, torch.Tensor) and _is_of(value, made):
            del names[name]
    return names


def _is_of(tensor: torch.Tensor, made: frozenset[int]) -> bool:
    return tensor.is_cuda and tensor.grad_fn is not None and _addr(tensor) in made


def _addr(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _watch_real(tracker: Tracker, objects: list[Any], gone: frozenset[int]) -> None:
    """Counts what the step gives back of what was there, and what is held after all.

    Python has no objects for gradients that nobody has looked at.
    """
    tensors = [o for o in objects if issubclass(type(o), torch.Tensor)]
    gradients = [t.grad for t in tensors if t.is_leaf and t.grad is not None]
    for tensor in (*tensors, *gradients):
        if not tensor.is_cuda or tensor.layout is not torch.strided:
            continue
        if (tensor.device.index or 0) == tracker.device:
            tracker.watch_real(tensor, _addr(tensor) in gone)


# ---- What is told


def _names_of_modules(modules: list[nn.Module]) -> dict[int, str]:
    """Of each module its path in the outermost that has it, with ``*`` for numbers."""
    names: dict[int, str] = {}
    for root in _roots(modules):
        for name, module in root.named_modules():
            names.setdefault(id(module), re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name))
    return names


def _roots(modules: list[nn.Module]) -> list[nn.Module]:
    """Those that no other has."""
    inside = {
        id(child) for m in modules for child in m.__dict__.get("_modules", {}).values()
    }
    return [module for module in modules if id(module) not in inside]


def _summary(calls: Calls, modules: list[nn.Module]) -> list[dict[str, Any]]:
    known = {id(module): module for module in modules}
    found = []
    for kind, saved in calls.found.items():
        total = sum(saved.values())
        if total >= GROWTH_MIN:
            paths = sorted({calls.names.get(module, "") for module in saved})
            entry = {"class": kind, "saved": total, "paths": paths}
            entry |= {"modules": list(saved), "parts": kind in calls.parts}
            called = [known[module] for module in saved if module in known]
            entry["nested"] = any(_holds_one_of(m, saved) for m in called)
            entry["plain"] = all(_is_plain(module) for module in called)
            found.append(entry)
    return sorted(found, key=lambda entry: -entry["saved"])


def _sequence(calls: Calls, modules: list[nn.Module]) -> dict[str, Any]:
    """The ``nn.Sequential`` whose call saves most, and how it can be cut.

    Returns:
        The ``module``, its ``path``, and several ``cuts`` into segments: the indices of
        the layers that begin one, and whether they are those of PyTorch's
        ``checkpoint_sequential``. None of these layers writes to what it is given,
        which would be another as it runs again. Empty: there is none.
    """
    saved = {i: size for by in calls.found.values() for i, size in by.items()}
    called = [m for m in modules if isinstance(m, nn.Sequential) and id(m) in saved]
    if not called:
        return {}
    most = max(called, key=lambda module: saved[id(module)])
    layers, cuts = [*most], []
    for count in SEGMENTS:
        even = [i * (len(layers) // count) for i in range(1, count)]
        pure = [_next_pure(layers, i, calls.writers) for i in even]
        if len(layers) >= 2 * count:
            cuts.append((pure, pure == even))
    path = calls.names.get(id(most)) or "model"
    return {"module": id(most), "path": path, "cuts": cuts}


def _next_pure(layers: list[nn.Module], first: int, writers: set[int]) -> int:
    pure = (i for i in range(first, len(layers)) if id(layers[i]) not in writers)
    return next(pure, first)


def _saved(calls: Calls, modules: list[nn.Module]) -> list[tuple[str, str, int]]:
    """Within models of libraries, whose own lines nobody asks for."""
    roots = [module for module in _roots(modules) if not _is_users(module)]
    inside = {id(part): part for root in roots for part in root.modules()}
    found: Counter[tuple[str, str]] = Counter()
    for module, size_bytes in calls.alone.items():
        if size_bytes > 0 and module in inside and calls.names.get(module):
            kind = type(inside[module]).__qualname__
            found[calls.names[module], kind] += size_bytes
    return [(path, kind, size) for (path, kind), size in found.most_common(SAVERS)]


def _is_users(module: nn.Module) -> bool:
    """Whether the user wrote its class, or what it is a container of."""
    kind = type(module)
    if kind.__module__ == nn.Sequential.__module__:
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is None or is_user(file)


def _holds_one_of(module: nn.Module, others: dict[int, int]) -> bool:
    return any(id(m) in others for m in module.modules() if m is not module)


def _is_plain(module: nn.Module) -> bool:
    """Whether it is PyTorch's own, such as a ``Sequential``."""
    return type(module).__module__.startswith("torch.nn.")


def _cache(tracker: Tracker) -> dict[str, Any]:
    """What calls join to, or write into, and keep: keys and values of each layer.

    Returns:
        ``addrs``: of those that were there; ``sizes``: the least and the most bytes;
        ``turn_bytes``: by how much a call lengthens all; ``length``: the tokens.
        Empty: there is none.
    """
    last = _of_last_call(tracker)
    if len(last) < 2:
        return {}
    pieces = [piece for c in tracker.caches for piece in (c.old, c.new)]
    sizes = [piece.size_bytes for piece in pieces]
    return {
        "addrs": [piece.addr for piece in pieces if piece.addr],
        "sizes": [min(sizes), max(sizes)],
        "turn_bytes": sum(c.new.size_bytes - c.old.size_bytes for c in last),
        "length": last[0].old.shape[last[0].dim],
    }


def _without_cache(tracker: Tracker) -> dict[str, int]:
    """The peak with a cache that is smaller, or whose layers go when longer ones come.

    On the host all is but two layers, of which one comes while the other is used.
    """
    caches, count = tracker.caches, max(1, len(_of_last_call(tracker)))
    known = {id(piece) for c in caches for piece in (c.old, c.new)}
    replaced = [c for c in reversed(caches) if c.old is not c.new]
    gone = {id(c.old): c.new.begin + 1 for c in replaced}  # the first time

    def without(share: Callable[[Piece], float]) -> int:
        return tracker.peak_without(lambda p: share(p) if id(p) in known else 0)

    return {
        "offloaded": without(lambda _: max(0, 1 - CACHED_MIN / count)),
        "quantized": without(lambda piece: 1 - 4.5 / (8 * piece.dtype.itemsize)),
        "windowed": without(lambda _: 0.5),
        "dropped": tracker.peak_without(lambda p: id(p) in gone, gone),
    }


def _shapes(tracker: Tracker) -> dict[int, list[tuple[str, tuple[int, ...]]]]:
    found: dict[int, dict[tuple[str, tuple[int, ...]], None]] = defaultdict(dict)
    for piece in tracker.pieces:
        if piece.size_bytes >= GROWTH_MIN:
            found[piece.size_bytes][str(piece.dtype)[6:], piece.shape] = None
    return {size: [*known] for size, known in found.items()}


def _of_last_call(tracker: Tracker) -> list[Cached]:
    return [c for c in tracker.caches if c.call == tracker.caches[-1].call]


def _messages(tracker: Tracker) -> dict[str, Any]:
    """Messages that nodes send along edges: taken by row, and added up by row again.

    Returns:
        Of the largest graph that was there as the step began, the numbers of ``nodes``
        and ``edges``, and the peak with a part of them, by the number of ``parts``.
        Empty: there is none.
    """
    both = tracker.taken & tracker.added
    pairs = {(n, e) for n, e in both if n in tracker.rows and e >= DEGREE * n}
    if not pairs:
        return {}
    rows = {count for pair in pairs for count in pair}

    def in_parts(count: int) -> int:
        def share(piece: Piece) -> float:
            is_made = piece.phase != "before"
            return 1 - 1 / count if is_made and rows & {*piece.shape[:1]} else 0

        return tracker.peak_without(share)

    nodes, edges = max(pairs, key=lambda pair: pair[1])
    return {
        "nodes": nodes,
        "edges": edges,
        "parts": [(count, in_parts(count)) for count in PARTS],
    }


def _squares(tracker: Tracker) -> set[int]:
    shapes = (piece.shape for piece in tracker.pieces)
    return {s[-1] for s in shapes if len(s) == 2 and s[0] == s[1] and s[0] > 1}


def _without_logits(tracker: Tracker) -> dict[str, Any]:
    """The largest logits that a loss chooses from, and the peak with a part of them."""
    logits = max(tracker.chosen_from, key=math.prod, default=())
    count = math.prod(logits) if logits and logits[-1] >= WIDE else 0

    def chunked(piece: Piece) -> float:
        is_like = count and piece.addr == 0 and math.prod(piece.shape) == count
        return 1 - 1 / CHUNKS if is_like else 0

    return {
        "logits": list(logits) if count else [],
        "chunked": tracker.peak_without(chunked),
    }


def _without_states(
    tracker: Tracker, optimizers: list[Any], tables: list[torch.Tensor]
) -> dict[str, int]:
    """The peak with optimizers that have less state, or fuse; and without tables.

    What backward and an optimizer make in the shape of a table is the table's.
    """
    states = {id(tracker.piece_of(tensor)) for tensor in _states(optimizers)}
    own = {id(tracker.piece_of(table)) for table in tables}
    shapes = {tuple(table.shape) for table in tables}

    def factored(piece: Piece) -> float:
        if id(piece) not in states or len(piece.shape) < 2:
            return 0
        rows, columns = piece.shape[-2:]
        return 1 - min(1, (rows + columns) / (rows * columns))

    def fused(piece: Piece) -> float:
        return piece.phase == "optimizer" and id(piece) not in states

    def of_tables(piece: Piece) -> float:
        return piece.shape in shapes and piece.phase != "forward"

    def row_wise(piece: Piece) -> float:
        if not of_tables(piece) or id(piece) in own:
            return 0
        return 1 - (id(piece) in states) / (2 * piece.shape[-1])

    def sparse(piece: Piece) -> float:
        return of_tables(piece) and id(piece) not in own | states

    return {
        "8 bits": tracker.peak_without(lambda piece: 0.75 * (id(piece) in states)),
        "factored": tracker.peak_without(factored),
        "fused": tracker.peak_without(fused),
        "tables": tracker.peak_without(of_tables),
        "row-wise": tracker.peak_without(row_wise),
        "sparse": tracker.peak_without(sparse),
    }


def _states(optimizers: list[Any]) -> Iterator[torch.Tensor]:
    """The tensors that optimizers keep."""
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    yield value
