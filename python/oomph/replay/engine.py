"""What stands in for PyTorch's engine, and for CUDA, in a forked child.

A forked child has none of autograd's threads, and CUDA does not work in it. So backward
runs in the thread that asks for it, and functions that would ask CUDA are replaced by
answers, once and for good: the child does nothing else. That costs nothing for each
operator.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from oomph import _torch
from oomph.base import imports
from oomph.replay.again import AGAIN
from oomph.replay.operators import contents, recurrent, shapes
from oomph.replay.tracking import Tracker

_SILENT = [
    *("synchronize", "empty_cache", "_lazy_init", "reset_peak_memory_stats"),
    *("ipc_collect", "set_device", "manual_seed", "manual_seed_all", "set_rng_state"),
]
_AMOUNTS = [
    *("memory_allocated", "memory_reserved", "max_memory_allocated"),
    *("max_memory_reserved", "utilization", "memory_usage"),
]

_OF_STREAMS = {
    *("record", "wait", "query", "synchronize", "elapsed_time"),
    *("wait_stream", "wait_event", "record_event"),
}


class UnknownStep(Exception):
    """The statements are no step, or do what has no answer without memory."""


@dataclass
class Engine:
    """What stands for PyTorch's engine: backward in this thread."""

    mode: FakeTensorMode
    tracker: Tracker
    count: int = 0
    task: int = 0
    depth: int = 0
    optimized: int = 0
    made_line: int = 0
    casts: bool = False
    stepped: dict[int, torch.optim.Optimizer] = field(default_factory=dict)
    lacks_graph: bool = False  # backward was asked for where nothing was recorded

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
        if not torch.is_grad_enabled() and not any(t.requires_grad for t in tensors):
            self.lacks_graph = True
            raise UnknownStep("backward where nothing was recorded")
        before, self.tracker.ledger.phase = self.tracker.ledger.phase, "backward"
        if self.depth == 0:
            self.task += 1
        self.depth += 1
        wanted = [] if accumulate_grad else list(inputs)
        try:
            self._give_gradients()
            with self._without_autocast():
                got = _torch.backward_here(
                    list(tensors),
                    list(gradients),
                    wanted,
                    bool(keep_graph),
                    bool(create_graph),
                )
            self._take_gradients()
        finally:
            self.depth -= 1
            self.tracker.ledger.phase = before
        self.count += self.depth == 0
        return got

    @contextlib.contextmanager
    def _without_autocast(self) -> Iterator[None]:
        """Autocast that was put around a whole step ends with forward."""
        if not self.casts or self.depth > 1:
            yield
            return
        torch.clear_autocast_cache()
        with torch.autocast("cuda", enabled=False):
            yield

    def note_made(self, register: Any, *args: Any) -> None:
        """A module gets a parameter: the statements before make the model."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_name != AGAIN:
            frame = frame.f_back
        self.made_line = max(self.made_line, frame.f_lineno if frame else 0)
        register(*args)

    def begin_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """An optimizer's."""
        self.tracker.ledger.phase = "optimizer"
        self.stepped[id(optimizer)] = optimizer

    def end_step(self, *_: Any) -> None:
        """An optimizer's."""
        self.tracker.ledger.phase = "forward"
        self.optimized += 1

    def queue_callback(self, _: Any) -> None:
        """What would run after backward does not."""

    def is_checkpoint_valid(self) -> bool:
        """Reentrant checkpoints are."""
        return True

    def _leaves(self) -> Iterator[tuple[torch.Tensor, FakeTensor]]:
        converter = self.mode.fake_tensor_converter.meta_converter
        for real, number in _items(converter.describer.lookup_tensor):
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


class _Stream:
    """A stream or an event on which all has happened, whatever it is asked."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = self.stream_id = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: self if name.startswith("record") else True

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _ForPyTorch(type):
    """Of a class that is a fake's for PyTorch alone.

    Libraries that see a fake believe that they are traced, and do what they would not.
    """

    def __instancecheck__(cls, value: object) -> bool:
        return cls._pytorch_asks() and isinstance(value, FakeTensor)

    def __subclasscheck__(cls, kind: type) -> bool:
        return cls._pytorch_asks() and issubclass(kind, FakeTensor)

    @staticmethod
    def _pytorch_asks() -> bool:
        asker = str(sys._getframe(2).f_globals.get("__name__", ""))
        return asker.partition(".")[0] == "torch"


class _HiddenFake(metaclass=_ForPyTorch):
    """Stands for ``torch._subclasses.FakeTensor``."""


def _items(table: Any) -> list[tuple[torch.Tensor, Any]]:
    return list(table.items())


def stand_in(engine: Engine) -> None:
    """Replaces what works in no child, in this process and for good."""
    cuda: Any = torch.cuda
    core: Any = torch._C
    device, state = engine.tracker.device, torch.zeros(16, dtype=torch.uint8)
    answers: dict[str, Any] = {
        "_is_in_bad_fork": False,
        "is_current_stream_capturing": False,
        "get_rng_state": state,
        **dict.fromkeys(_SILENT),
        **dict.fromkeys(_AMOUNTS, 0),
        "mem_get_info": (engine.tracker.card.memory_bytes,) * 2,
        "memory_stats": Counter(),
        "memory_snapshot": [],
        "memory_summary": "",
    }
    for name, answer in answers.items():
        for place in (cuda, cuda.memory, cuda.random, cuda.graphs):
            if hasattr(place, name):
                setattr(place, name, lambda *_, answer=answer, **__: answer)
    for name in ("Stream", "Event", "current_stream", "default_stream", "stream"):
        setattr(cuda, name, _Stream)
    for name in _OF_STREAMS:  # and of those that were there
        answering = getattr(_Stream(), name)
        setattr(cuda.streams.Stream, name, answering)
        setattr(cuda.streams.Event, name, answering)
    _answer_arrays(engine.tracker)
    subclasses: Any = torch._subclasses
    subclasses.FakeTensor = _HiddenFake
    for name in ("get", "exchange", "maybeExchange"):
        setattr(core, f"_cuda_{name}Device", lambda *_: device)
    core._cuda_setDevice = lambda *_: None
    core._current_graph_task_id = lambda: engine.task if engine.depth else -1
    faking: Any = fake_tensor
    faking.init_gpu_context = lambda *_: None
    faking.FakeTensorMode.avoid_device_init = True  # or numbers become real tensors
    _call_originals(core.ScriptFunction)
    variable: Any = torch.autograd.Variable
    variable._execution_engine = engine
    recurrent.stand_in()
    shapes.stand_in()
    _take_hooks(engine)
    imports.when_imported("triton.runtime.jit", _launch_nothing)
    if "torch._dynamo" in sys.modules:
        torch.compiler.set_stance("force_eager")


def _answer_arrays(tracker: Tracker) -> None:
    """Arrays and lists of tensors that have no values are of those that are guessed."""
    fake: Any = FakeTensor

    def array(tensor: torch.Tensor) -> torch.Tensor:
        if (known_values := contents.value_of(tensor)) is not None:
            return known_values
        value = tracker.guess(tensor)
        found = torch.zeros(tuple(tensor.shape), dtype=tensor.dtype, device="cpu")
        return found if value == 0 else found.fill_(value)

    def numpy(tensor: torch.Tensor, **_: Any) -> Any:
        with _disable_current_modes():
            return array(tensor).numpy()

    def tolist(tensor: torch.Tensor) -> Any:  # numpy has not all types
        with _disable_current_modes():
            return array(tensor).tolist()

    fake.numpy, fake.tolist = numpy, tolist


def _launch_nothing(jit: Any) -> None:
    """Kernels of Triton write to what is there, nobody knows what."""

    def launch(*arguments: Any, **named: Any) -> None:
        contents.forget((*arguments, *named.values()))

    jit.KernelInterface.__getitem__ = lambda *_: launch


def _call_originals(scripted: Any) -> None:
    """What TorchScript has compiled would make its constants on a real device."""
    compiled = scripted.__call__

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        original = getattr(function, "_torchdynamo_inline", None)
        if original is None:  # it was traced, or loaded
            return compiled(function, *args, **kwargs)
        return original(*args, **kwargs)

    scripted.__call__ = call


def _take_hooks(engine: Engine) -> None:
    """Hooks of all modules and optimizers, which are those of libraries, go."""
    from torch.optim import optimizer as optim

    module: Any = nn.Module
    register = module.register_parameter
    module.register_parameter = lambda *args: engine.note_made(register, *args)
    hooks = nn.modules.module
    for known in ("_global_forward_hooks", "_global_forward_pre_hooks"):
        getattr(hooks, known).clear()
    optim._global_optimizer_pre_hooks.clear()
    optim._global_optimizer_post_hooks.clear()
    optim.register_optimizer_step_pre_hook(engine.begin_step)
    optim.register_optimizer_step_post_hook(engine.end_step)
