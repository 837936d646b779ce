"""Runs a call of a module again in backward, in place of keeping what it saves.

PyTorch's own checkpoint does it (``torch.utils.checkpoint``, not reentrant), which
keeps the call's inputs and runs its forward again, under the same autocast, when
backward first wants anything that it saved. The random states are those of the first
forward, and what the second writes to buffers is undone.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint

from oomph.recompute.calls import apart, devices_of
from oomph.recompute.contents import Undone
from oomph.recompute.draws import Draws

_generator = checkpoint._checkpoint_without_reentrant_generator
_PARAMETERS = inspect.signature(_generator).parameters


class _Modules:
    """How a module and those in it were: training or not, with which parameters.

    All may be others by the time of backward: a program evaluates in between, or
    ``torch.func.functional_call`` has put its own parameters back. So may a weight that
    is made of others before each forward, by a hook of the module.

    Args:
        module: It.
    """

    def __init__(self, module: nn.Module) -> None:
        self._were = [(m, m.training, dict(m._parameters)) for m in module.modules()]
        self._module, self._made = module, self._tensors_of(module)
        self._versions = [(p, p._version) for p in module.parameters()]

    @contextlib.contextmanager
    def as_they_were(self) -> Iterator[None]:
        """Meanwhile they are as they were.

        Raises:
            RuntimeError: A parameter was written to since.
        """
        for parameter, version in self._versions:
            if parameter._version != version:
                raise RuntimeError(
                    "oomph: a parameter of a module was modified by an inplace "
                    f"operation before backward: {list(parameter.shape)} is at version "
                    f"{parameter._version}; expected version {version}, as the module "
                    "runs again in backward. Modify it after backward, or set "
                    "recompute:off."
                )
        are = [(m, m.training, dict(m._parameters)) for m, _, _ in self._were]
        made = self._tensors_of(self._module)
        try:
            self._set(self._were)
            vars(self._module).update(self._made)
            yield
        finally:
            self._set(are)
            vars(self._module).update(made)

    @staticmethod
    def _tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
        found = vars(module).items()
        return {name: x for name, x in found if isinstance(x, torch.Tensor)}

    @staticmethod
    def _set(states: list[tuple[nn.Module, bool, Any]]) -> None:
        for module, training, parameters in states:
            if module.training != training:
                module.training = training
            if any(module._parameters[n] is not p for n, p in parameters.items()):
                module._parameters.update(parameters)


class Rerun:
    """One call that will run again; between its begin and its end runs its forward.

    All tensors among its arguments are saved as autograd saves them, so that a change
    in place is noticed, and hooks see them.

    Args:
        module: Whose call.
        args: Its arguments.
        kwargs: Its arguments by name.
        check: Looks at the arguments that it runs again with.
    """

    def __init__(
        self,
        module: nn.Module,
        args: Any,
        kwargs: Any,
        check: Callable[[Any, Any], None] | None = None,
    ) -> None:
        leaves, rebuild = apart(args, kwargs)
        modules, buffers = _Modules(module), Undone(module)
        draws = Draws(devices_of(leaves))

        def again(*once: Any) -> None:
            inputs, named = rebuild(once)
            if check is not None:
                check(inputs, named)
            with draws.again(), modules.as_they_were():
                module.forward(*inputs, **named)

        fixed: list[Any] = [
            False,  # random states: see draws.py
            lambda: (contextlib.nullcontext(), buffers),
            "default",  # shapes are compared
            False,
        ]
        if "early_stop" in _PARAMETERS:
            fixed.append(True)
        self._run: Generator[None, None, None] = _generator(again, *fixed, *leaves)
        next(self._run)

    def end(self) -> None:
        """The first forward has ended."""
        next(self._run, None)

    def close(self) -> None:
        """The first forward has failed."""
        self._run.close()
