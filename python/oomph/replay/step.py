"""A step that runs again, on tensors that have shapes and no memory.

What ran out of memory is a step of which only a part was seen. In a forked child
(:mod:`oomph.replay.child`), the program's own statements run again from the begin of
the step, twice, under PyTorch's ``FakeTensorMode``: forward, loss, backward and the
optimizer, with all that the program does between. So the peak is that of this program
and this batch, whatever the model is.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import re
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from oomph import _torch
from oomph.replay import recurrent
from oomph.replay.statements import AGAIN, Stretch, take_variables
from oomph.replay.tracking import Piece, Tracker

TURNS = 2  # the second begins with what the first one left
GROWTH_MIN = 1 << 20  # bytes that a module's call saves, to be told
CHUNKS = 8  # that a loss is cut into
WIDE = 4096  # choices from which on logits are large


class UnknownStep(Exception):
    """The statements are no step, or do what has no answer without memory."""


@dataclass(frozen=True)
class Change:
    """How a step is to differ from the program's.

    Attributes:
        batch: Size of the batch, and the one to have instead; None: as it is.
        autocast: In ``torch.autocast`` with bfloat16.
        checkpoint: Identities of modules whose calls run again in backward.
        no_grad: Identities of modules whose calls record nothing.
        every_call_silent: No call records anything.
        from_now: It begins with the statement that failed.
    """

    batch: tuple[int, int] | None = None
    autocast: bool = False
    checkpoint: tuple[int, ...] = ()
    no_grad: tuple[int, ...] = ()
    every_call_silent: bool = False
    from_now: bool = False

    @classmethod
    def of(cls, values: dict[str, Any]) -> Change:
        """That of a dict, as JSON has it."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})

    def joined(self, other: Change) -> Change:
        """Both."""
        return Change(
            self.batch or other.batch,
            self.autocast or other.autocast,
            self.checkpoint + other.checkpoint,
            self.no_grad + other.no_grad,
            self.every_call_silent or other.every_call_silent,
        )


@dataclass
class Engine:
    """What stands for PyTorch's engine: backward in this thread."""

    mode: FakeTensorMode
    tracker: Tracker
    count: int = 0
    depth: int = 0
    optimized: int = 0
    made_line: int = 0

    def run_backward(
        self,
        tensors: Any,
        gradients: Any,
        keep_graph: bool,
        create_graph: bool,
        inputs: Any = (),
        allow_unreachable: bool = True,
        accumulate_grad: bool = False,
        **_: Any,
    ) -> tuple[Any, ...]:
        """As ``torch._C._EngineBase.run_backward``."""
        if any(not isinstance(tensor, FakeTensor) for tensor in tensors):
            raise UnknownStep("backward of what an earlier step made")
        before, self.tracker.phase = self.tracker.phase, "backward"
        self.depth += 1
        wanted = [] if accumulate_grad else list(inputs)
        try:
            self._give_gradients()
            got = _torch.backward_here(
                list(tensors), list(gradients), wanted, bool(keep_graph), bool(create_graph)
            )
            self._take_gradients()
        finally:
            self.depth -= 1
            self.tracker.phase = before
        self.count += self.depth == 0
        return got

    def note_made(self, register: Any, *args: Any) -> None:
        """A module gets a parameter: the statements before make the model."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_name != AGAIN:
            frame = frame.f_back
        self.made_line = max(self.made_line, frame.f_lineno if frame else 0)
        register(*args)

    def begin_step(self, *_: Any) -> None:
        """An optimizer's."""
        self.tracker.phase = "optimizer"

    def end_step(self, *_: Any) -> None:
        """An optimizer's."""
        self.tracker.phase = "forward"
        self.optimized += 1

    def queue_callback(self, _: Any) -> None:
        """What would run after backward does not."""

    def is_checkpoint_valid(self) -> bool:
        """Reentrant checkpoints are."""
        return True

    def _leaves(self) -> Iterator[tuple[torch.Tensor, FakeTensor]]:
        converter = self.mode.fake_tensor_converter.meta_converter
        for real, number in list(converter.describer.lookup_tensor.items()):
            fake = converter.tensor_memo.get(number)
            if real.requires_grad and real.is_leaf and isinstance(fake, FakeTensor):
                yield real, fake

    def _give_gradients(self) -> None:
        for real, fake in self._leaves():
            kept = real.grad
            if kept is not None and not isinstance(kept, FakeTensor):
                kept = self.mode.from_tensor(kept)
            fake.grad = kept

    def _take_gradients(self) -> None:
        for real, fake in self._leaves():
            if fake.grad is not None:
                real.grad, fake.grad = fake.grad, None


@dataclass
class Calls:
    """What the calls of each class of modules save for backward."""

    tracker: Tracker
    names: dict[int, str]
    found: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    parts: set[str] = field(default_factory=set)
    _open: list[int] = field(default_factory=list)

    def enter(self, module: nn.Module, _: Any) -> None:
        """A call begins."""
        self._open.append(self.tracker.now_bytes)

    def leave(self, module: nn.Module, _: Any, output: Any) -> None:
        """A call ends."""
        grown = self.tracker.now_bytes - self._open.pop() if self._open else 0
        if torch.is_grad_enabled() and self.tracker.phase == "forward":
            name = type(module).__qualname__
            if module.__dict__.get("_modules"):
                self.parts.add(name)
            kept = self.found[name]
            kept[id(module)] = max(kept.get(id(module), 0), grown)


class Replay:
    """A step that runs again; only in a child, which cannot go on afterwards.

    Args:
        stretch: The statements.
        first: Index of the statement to begin with.
        device: Index of the device that counts.
        gone: Addresses of blocks that are not counted as there when it begins: what
            the step has made so far.
    """

    def __init__(
        self, stretch: Stretch, first: int, device: int, gone: frozenset[int]
    ) -> None:
        self.stretch, self.first = stretch, first
        self.names = _take(stretch, first, gone)
        gc.collect()
        objects = gc.get_objects()
        self.modules = [o for o in objects if issubclass(type(o), nn.Module)]
        kind = torch.optim.Optimizer
        self.optimizers = [o for o in objects if issubclass(type(o), kind)]
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.tracker = Tracker(self.mode, device)
        self.engine = Engine(self.mode, self.tracker)
        self.calls = Calls(self.tracker, _names_of_modules(self.modules))
        _expect_converted(self.mode, self.tracker)
        _stand_in(self.engine)
        _watch_real(self.tracker, objects, gone)
        del objects
        gc.freeze()  # what is there need not be looked at again
        hooks = nn.modules.module
        hooks.register_module_forward_pre_hook(self.calls.enter)
        hooks.register_module_forward_hook(self.calls.leave, always_call=True)

    def begin(self) -> dict[str, Any]:
        """Runs it as it is.

        Returns:
            ``peaks``: of each turn the most bytes beyond what was there, and ``ends``
            what was left behind it; ``phase``: of the last peak; ``backwards``: how
            many there were; ``optimizers``: how many the program has; ``optimized``:
            how often one took its step; ``made_line``: the last line that made a model;
            ``whole``: whether the statements came to their end; ``guessed`` and
            ``gathered`` as :class:`Tracker` has them; ``squares``: the sizes of square
            matrices; ``calls``: of each class of modules, what their calls saved in
            bytes, and how they are named; ``without``: the peak, had some things been
            smaller; ``error``: what ended it.
        """
        return self._run(Change(), TURNS, self.first)

    def again(self, change: dict[str, Any]) -> dict[str, Any]:
        """Runs one more turn, with a change, as :meth:`begin` tells of all."""
        wanted = Change.of(change)
        self.engine.count = self.engine.optimized = 0
        _change_modules(self.modules, wanted)
        first = self.stretch.now if wanted.from_now else self.first
        return self._run(wanted, 1, first)

    def _run(self, change: Change, turns: int, first: int) -> dict[str, Any]:
        whole, error, peaks, ends = False, "", list[int](), list[int]()
        run = self.stretch.compile(first)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.mode)
            stack.enter_context(self.tracker)
            if change.every_call_silent:
                stack.enter_context(torch.no_grad())
            if change.autocast:
                stack.enter_context(torch.autocast("cuda", torch.bfloat16))
            if change.batch is not None:
                used, bound = self.stretch.names(), self.stretch.bound_first(first)
                self.names = _with_batch(self.names, used, bound, *change.batch)
            try:
                for _ in range(turns):
                    self.tracker.mark()
                    stays = self.stretch.is_loop or self.stretch.is_of_module
                    left = run(self.names if stays else dict(self.names))
                    peaks.append(self.tracker.peak_bytes)
                    ends.append(self.tracker.now_bytes)
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
            "phase": tracker.peak_phase,
            "backwards": engine.count,
            "optimizers": len(self.optimizers),
            "optimized": engine.optimized,
            "made_line": engine.made_line,
            "whole": whole,
            "guessed": tracker.guessed,
            "gathered": sorted(tracker.gathered),
            "squares": sorted(_squares(tracker)),
            "error": error,
            "calls": _summary(self.calls),
            "without": _without(tracker, self.optimizers),
        }


# ---- What stands in for what works on no child


def _stand_in(engine: Engine) -> None:
    cuda = torch.cuda
    nothing = lambda *_, **__: None  # noqa: E731
    for name in (
        *("synchronize", "empty_cache", "_lazy_init", "reset_peak_memory_stats"),
        *("ipc_collect", "set_device", "manual_seed", "manual_seed_all"),
    ):
        setattr(cuda, name, nothing)
        if hasattr(cuda.memory, name):
            setattr(cuda.memory, name, nothing)
    state = torch.zeros(16, dtype=torch.uint8)
    for place in (cuda, cuda.random):
        place.get_rng_state = lambda *_: state  # type: ignore[attr-defined]
        place.set_rng_state = nothing  # type: ignore[attr-defined]
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated"):
        setattr(cuda, name, lambda *_, **__: 0)
    for place in (cuda, cuda.graphs):
        place.is_current_stream_capturing = lambda: False  # type: ignore[assignment]
    cuda._is_in_bad_fork = lambda: False  # type: ignore[attr-defined]
    device = engine.tracker.device
    _torch.leave_cuda()
    for name in ("_cuda_getDevice", "_cuda_exchangeDevice", "_cuda_maybeExchangeDevice"):
        setattr(torch._C, name, lambda *_: device)
    torch._C._cuda_setDevice = nothing  # type: ignore[attr-defined]
    fake_tensor.init_gpu_context = nothing  # type: ignore[attr-defined]
    torch.autograd.Variable._execution_engine = engine  # type: ignore[attr-defined]
    torch._C._current_graph_task_id = lambda: 1 if engine.depth else -1
    recurrent.stand_in()
    register = nn.Module.register_parameter
    nn.Module.register_parameter = (  # type: ignore[method-assign]
        lambda *args: engine.note_made(register, *args)
    )
    if "torch._dynamo" in sys.modules:
        torch.compiler.set_stance("force_eager")
    hooks = nn.modules.module
    for known in ("_global_forward_hooks", "_global_forward_pre_hooks"):
        getattr(hooks, known).clear()
    from torch.optim import optimizer as optim

    optim._global_optimizer_pre_hooks.clear()
    optim._global_optimizer_post_hooks.clear()
    optim.register_optimizer_step_pre_hook(engine.begin_step)
    optim.register_optimizer_step_post_hook(engine.end_step)


def _expect_converted(mode: FakeTensorMode, tracker: Tracker) -> None:
    """What is made of a real tensor takes no memory of its own."""
    converter = mode.fake_tensor_converter
    convert = converter.from_real_tensor

    def expected(*args: Any, **kwargs: Any) -> FakeTensor:
        made = convert(*args, **kwargs)
        tracker.expect(made)
        return made

    converter.from_real_tensor = expected  # type: ignore[method-assign]


def _take(stretch: Stretch, first: int, made: frozenset[int]) -> dict[str, Any]:
    """The variables of the frame, without those that the step makes anew.

    Those of the calls that the frame waited for are gone.
    """
    for frame in stretch.inner:
        take_variables(frame)
    names = take_variables(stretch.frame)
    for name in stretch.bound_first(first):
        value = names.get(name)
        if isinstance(value, torch.Tensor) and value.is_cuda:
            if value.grad_fn is not None and _addr(value) in made:
                del names[name]
    return names


def _addr(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _watch_real(tracker: Tracker, objects: list[Any], gone: frozenset[int]) -> None:
    """Counts what the step gives back of what was there, and what is held after all."""
    seen: set[int] = set()
    for tensor in objects:
        if not issubclass(type(tensor), torch.Tensor) or isinstance(tensor, FakeTensor):
            continue
        if not tensor.is_cuda or tensor.layout is not torch.strided:
            continue
        if (tensor.device.index or 0) != tracker.device:
            continue
        storage = tensor.untyped_storage()
        addr = storage.data_ptr()
        if addr in seen or not addr:
            continue
        seen.add(addr)
        size = storage.nbytes()
        tracker.watch_real(storage, size)
        if addr in gone:
            tracker.change(size)


# ---- What is to be otherwise


def _change_modules(modules: list[nn.Module], change: Change) -> None:
    if not change.checkpoint and not change.no_grad:
        return
    from torch.utils.checkpoint import checkpoint

    for module in modules:
        if id(module) in change.checkpoint:
            module.forward = functools.partial(
                checkpoint, module.forward, use_reentrant=False
            )
        elif id(module) in change.no_grad:
            module.forward = torch.no_grad()(module.forward)


def _with_batch(
    names: dict[str, Any], used: set[str], bound: set[str], size: int, wanted: int
) -> dict[str, Any]:
    """The variables with all tensors of the batch cut.

    Those that a step makes anew are left of one with less of the batch, too.
    """
    known: dict[int, Any] = {}
    for name in bound:
        value = names.get(name)
        if isinstance(value, torch.Tensor) and value.grad_fn is not None:
            names[name] = value.detach()
    return {
        name: _cut(value, size, wanted, known, 3) if name in used else value
        for name, value in names.items()
    }


def _cut(value: Any, size: int, wanted: int, known: dict[int, Any], depth: int) -> Any:
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        if value.ndim and value.shape[0] == size and not value.requires_grad:
            if id(value) not in known:
                known[id(value)] = value.narrow(0, 0, wanted).clone()
            return known[id(value)]
        return value
    if depth == 0 or isinstance(value, nn.Module):
        return value
    if type(value) in (list, tuple):
        return type(value)(_cut(v, size, wanted, known, depth - 1) for v in value)
    if isinstance(value, dict) and not isinstance(value, nn.Module):
        for key, part in list(value.items()):
            value[key] = _cut(part, size, wanted, known, depth - 1)
    elif hasattr(value, "data") and isinstance(getattr(value, "data", None), dict):
        _cut(value.data, size, wanted, known, depth - 1)  # a BatchEncoding
    return value


# ---- What is told


def _names_of_modules(modules: list[nn.Module]) -> dict[int, str]:
    """Of each module its path in the outermost that has it, with ``*`` for numbers."""
    inside = {
        id(child) for m in modules for child in m.__dict__.get("_modules", {}).values()
    }
    names: dict[int, str] = {}
    for root in modules:
        if id(root) not in inside:
            for name, module in root.named_modules():
                names.setdefault(id(module), re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name))
    return names


def _summary(calls: Calls) -> list[dict[str, Any]]:
    found = []
    for kind, saved in calls.found.items():
        total = sum(saved.values())
        if total >= GROWTH_MIN:
            paths = sorted({calls.names.get(module, "") for module in saved})
            entry = {"class": kind, "saved": total, "paths": paths}
            entry |= {"modules": list(saved), "parts": kind in calls.parts}
            found.append(entry)
    return sorted(found, key=lambda entry: -entry["saved"])


def _squares(tracker: Tracker) -> set[int]:
    shapes = (piece.shape for piece in tracker.pieces)
    return {s[-1] for s in shapes if len(s) == 2 and s[0] == s[1] and s[0] > 1}


def _without(tracker: Tracker, optimizers: list[Any]) -> dict[str, Any]:
    """The peak with smaller logits, with optimizers that have less state, or fuse."""
    states = _states(tracker, optimizers)
    logits = max(tracker.chosen_from, key=math.prod, default=())
    count = math.prod(logits) if logits and logits[-1] >= WIDE else 0

    def chunked(piece: Piece) -> float:
        return 1 - 1 / CHUNKS if count and math.prod(piece.shape) == count else 0

    def fused(piece: Piece) -> float:
        return piece.phase == "optimizer" and id(piece) not in states

    return {
        "logits": list(logits) if count else [],
        "chunked": tracker.peak_without(chunked),
        "state": tracker.peak_without(lambda piece: 0.75 * (id(piece) in states)),
        "fused": tracker.peak_without(fused),
        "state_bytes": sum(
            p.size_bytes for p in tracker.pieces if id(p) in states and p.end is None
        ),
    }


def _states(tracker: Tracker, optimizers: list[Any]) -> set[int]:
    """Identities of the pieces that optimizers keep."""
    found = set()
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                piece = tracker.piece_of(value) if isinstance(value, FakeTensor) else None
                found.add(id(piece))
    return found
