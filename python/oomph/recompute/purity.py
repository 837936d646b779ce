"""Whether a call of a module can be run again: shown by watching it, then by trying.

The first forward is watched while everything is kept. It is left alone if it wrote to a
tensor that it had not made, drew from a generator of its own, talked to other ranks,
was given an object that it might change, or changed anything that Python can see:
attributes, globals, closures, Python's and NumPy's random numbers. Nothing has been run
twice by then. What passes is run a second time, under the same random states, and its
outputs are compared bit by bit; buffers and random states are then as they were after
the first. Hooks of the module itself run around all this, once. So whether they change
what its forward goes by is looked at where backward begins.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
)

from oomph import _torch
from oomph.base.attempts import attempt
from oomph.base.log import logger
from oomph.recompute import own_hooks, python_state
from oomph.recompute.calls import apart, leaves_of, storages_in, tensors_in
from oomph.recompute.contents import Undone, same_bits, sum_of
from oomph.recompute.draws import Draws
from oomph.recompute.rerun import Rerun
from oomph.steps import global_hooks, times

_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, enum.Enum, slice),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)
_RANKS = ("c10d", "_c10d_functional", "c10d_functional", "symm_mem")
Aside = Callable[[], contextlib.AbstractContextManager[None]]


# ---- What can be said of a module before it runs


def forbids(module: nn.Module) -> str | None:
    """Why its calls are not run again, from what it is; None: nothing forbids it."""
    if not own_hooks.is_last(module):
        return f"{type(module).__name__} has hooks that change what it is given"
    for inner in module.modules():
        name = type(inner).__name__
        if isinstance(inner, torch.jit.ScriptModule):
            return f"{name} is a script"
        if own_hooks.is_compiled(inner):
            return f"{name} is compiled"
        if inner is not module and own_hooks.others(inner):
            return f"{name} in it has hooks"
    return None


def refuses(args: Any, kwargs: Any) -> str | None:
    """Why a call with these arguments is not run again; None: nothing forbids it."""
    for leaf in leaves_of((args, kwargs)):
        if not isinstance(leaf, (torch.Tensor, *_PLAIN)):
            return f"it is given a {type(leaf).__name__}, which it might change"
        if isinstance(leaf, torch.Tensor) and leaf.is_inference():
            return "it is given a tensor of torch.inference_mode()"
    return None


def is_watched() -> str | None:
    """Who beside oomph sees what runs now, and would see it twice; None: nobody."""
    if global_hooks.are_others():
        return "all modules have hooks"
    functions: Any = _get_current_function_mode_stack
    for mode in (*functions(), *_get_current_dispatch_mode_stack()):
        if not isinstance(mode, (DeviceContext, _Operators)):
            return f"a {type(mode).__name__} is on"
    return None


# ---- What its operators do


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches the operators of calls that are open."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.open: list[Trial] = []
        self._made: dict[int, int] = {}  # storages, by when they were made
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        self.count += 1
        if func.namespace in _RANKS:
            self._blame("it talks to other ranks")
        if isinstance(kwargs.get("generator"), torch.Generator):
            self._blame("it draws from a random generator of its own")
        for argument, value in zip(schema.arguments, args, strict=False):
            if argument.name == "dropout_state" and value is not None:
                self._blame("it draws from cuDNN's random numbers")
        if schema.is_mutable and func is not torch.ops.aten.record_stream.default:
            for i, argument in enumerate(schema.arguments):
                if argument.alias_info is None or not argument.alias_info.is_write:
                    continue
                value = args[i] if i < len(args) else kwargs.get(argument.name)
                for identity in storages_in(value):
                    self._write(identity, func)
        result = func(*args, **kwargs)
        for tensor in tensors_in(args, kwargs, result):
            if type(tensor) not in (torch.Tensor, nn.Parameter):
                self._blame(f"it computes with a {type(tensor).__name__}")
            if tensor.is_cuda:
                for trial in self.open:
                    trial.devices.add(tensor.device.index)
        given = storages_in(args, kwargs)
        for identity in storages_in(result) - given:
            self._made[identity] = self.count
        return result

    def _write(self, identity: int, func: Any) -> None:
        made = self._made.get(identity, -1)
        for trial in self.open:
            if made < trial.since and identity not in trial.buffers:
                trial.blame(f"its {func} writes to a tensor that it did not make")

    def _blame(self, reason: str) -> None:
        for trial in self.open:
            trial.blame(reason)


# ---- Trying


class Trial:
    """One call that is watched, and then run again.

    Attributes:
        reason: Why it is to be left alone, as far as was seen; None: nothing was.
        has_hooks: Whether the module has hooks of its own.
        again_ms: Time of the second run; 0 if there was none. Waits for the device.
    """

    def __init__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.module, self.arguments = module, (args, kwargs)
        self.reason = forbids(module) or refuses(args, kwargs) or is_watched()
        self.has_hooks = bool(own_hooks.others(module))
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        self.since = 0
        self.devices: set[int] = set()  # that it computes on
        self.buffers: frozenset[int] = frozenset()
        if self.reason is not None:
            return
        self.buffers = storages_in(list(module.buffers()))
        self._undone = Undone(module)
        self._state = self._marks()
        self._sums = [sum_of(tensor) for tensor in tensors_in(args, kwargs)]
        self._hooks = [bool(t._backward_hooks) for t in tensors_in(args, kwargs)]
        used = (*tensors_in(args, kwargs), *module.parameters())
        self._versions = [(_torch.outline(t), t._version) for t in used]
        self._draws = Draws(range(torch.cuda.device_count()))

    @property
    def again_ms(self) -> float:
        """Time of the second run."""
        if self._events is None:
            return 0.0
        start, end = self._events
        end.synchronize()
        return float(start.elapsed_time(end))

    def blame(self, reason: str) -> None:
        """Notes why the call is to be left alone; the first reason stands."""
        self.reason = self.reason or reason

    def end(self, output: Any, saved: int, aside: Aside, device: int) -> None:
        """The first forward has ended: looks at what it did, then runs it again.

        Args:
            output: What it gave.
            saved: How many tensors it saved.
            aside: Gives a context for what the program itself would not run.
            device: Whose time is taken.
        """
        if self.reason is None:
            self._look(output)
        if self.reason is None:
            with aside():
                self._try(output, saved, device)
        self.arguments = (), {}

    def look_again(self) -> None:
        """Backward begins: looks at what would be run again then."""
        if self.reason is None and self._inputs_changed():
            self.blame("its inputs are written to after it has run")
        if self.reason is None and self.has_hooks:
            found = python_state.changed(self._state, self._marks())
            if changed := [*filter(python_state.is_kept, found)]:
                self.blame(f"{min(changed, key=len)} changes after it has run")

    def _inputs_changed(self) -> bool:
        """Whether an input or a parameter was written to since the call began.

        An input that nobody has any more is written to by nobody.
        """
        if any(_torch.version_now(o) != version for o, version in self._versions):
            return True
        for (outline, _), before in zip(self._versions, self._sums, strict=False):
            now = _torch.original(outline)
            if now is not None and sum_of(now) != before:
                return True
        return False

    def _check_inputs(self, args: Any, kwargs: Any) -> None:
        """Backward has it run again, with these arguments."""
        now = [sum_of(tensor) for tensor in tensors_in(args, kwargs)]
        if now != self._sums:
            raise RuntimeError(
                f"oomph: an input of {type(self.module).__name__} was modified by an "
                "inplace operation before backward. The module runs again in backward "
                "and would give other values. Modify it after backward, or set "
                "recompute:off."
            )

    def _look(self, output: Any) -> None:
        for leaf in leaves_of(output):
            if not isinstance(leaf, (torch.Tensor, *_PLAIN)):
                self.blame(f"it returns a {type(leaf).__name__}")
        if len(self.devices) > 1:  # autograd has a thread for each, checkpoint no lock
            self.blame("it computes on several devices")
        now = self._marks()
        if len(now) > python_state.ENTRIES:
            self.blame("it holds too much to be looked through")
        if changed := python_state.changed(self._state, now):
            self.blame(f"it changes {min(changed, key=len)}")
        self._state = now
        inputs = list(tensors_in(self.arguments))
        if self._hooks != [bool(t._backward_hooks) for t in inputs]:
            self.blame("it puts a hook on a tensor that it is given")
        if self._sums != [sum_of(tensor) for tensor in inputs]:
            self.blame("it writes to a tensor that it did not make")

    def _marks(self) -> python_state.Marks:
        """Of what Python can see; what is asked may be of any class."""
        try:
            return python_state.marks(self.module, self.arguments)
        except Exception as error:
            logger.debug("a module cannot be looked through: %s", error)
            self.blame(f"it cannot be looked through ({type(error).__name__})")
            return {}

    @contextlib.contextmanager
    def _as_before(self) -> Iterator[None]:
        """Meanwhile random states and buffers are as they were before the call."""
        with self._draws.again(), self._undone:
            yield

    def run_to_repeat(self, args: Any, kwargs: Any) -> Any:
        """Runs it once more, keeping only its arguments until backward.

        Args:
            args: What it was called with.
            kwargs: The same by name.

        Returns:
            Its output.
        """
        with self._as_before():
            rerun = Rerun(self.module, args, kwargs, self._check_inputs)
            try:
                output = self.module.forward(*args, **kwargs)
            except BaseException:
                rerun.close()
                raise
            rerun.end()
        return output

    def _try(self, output: Any, saved: int, device: int) -> None:
        leaves, rebuild = apart(*self.arguments)
        count = 0

        def drop(_: torch.Tensor) -> Any:
            """Keeps nothing, of a forward that has no backward."""
            nonlocal count
            count += 1

        try:
            start = times.mark(device)
            with (
                attempt(),
                self._as_before(),
                torch.autograd.graph.saved_tensors_hooks(drop, drop),
            ):
                args, kwargs = rebuild([_as_another(x) for x in leaves])
                again = self.module.forward(*args, **kwargs)
            self._events = start, times.mark(device)
            is_same = same_bits(output, again)
        except torch.OutOfMemoryError:
            self.blame("there is no room to run it twice")
            return
        except Exception as error:  # whatever a module raises that is not run twice
            logger.debug("a block cannot be run again: %s", error)
            self.blame(f"a second forward raised {type(error).__name__}")
            return
        if not is_same:
            self.blame("a second forward gave other values")
            return
        if count != saved:
            self.blame("a second forward saved other tensors")
            return
        now = self._marks()
        if changed := python_state.changed(self._state, now):
            self.blame(f"a second forward changes {min(changed, key=len)}")


def _as_another(leaf: Any) -> Any:
    """The same tensor by another object, as autograd gives it back."""
    if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
        return leaf.view_as(leaf)
    return leaf


class Trials:
    """Watches the calls of one step that might be run again.

    Args:
        aside: Gives a context for what the program itself would not run.
        device: Whose times are taken.
    """

    def __init__(self, aside: Aside, device: int) -> None:
        self._aside, self._device = aside, device
        self._mode = _Operators()
        self._is_on = False

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> Trial:
        """A call begins."""
        trial = Trial(module, args, kwargs)
        if not self._is_on:
            self._mode.__enter__()  # type: ignore[no-untyped-call]
            self._is_on = True
        trial.since = self._mode.count + 1
        self._mode.open.append(trial)
        return trial

    def end(self, trial: Trial, output: Any, saved: int) -> None:
        """It has ended, and runs again. Others within it that are open are given up."""
        self.drop(trial)
        trial.end(output, saved, self._aside, self._device)

    def drop(self, trial: Trial) -> None:
        """It has ended, and is not to run again."""
        while self._mode.open and self._mode.open.pop() is not trial:
            pass
        if not self._mode.open:
            self.close()

    def close(self) -> None:
        """Takes the watch off, whatever is open."""
        self._mode.open.clear()
        if self._is_on:
            self._is_on = False
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
