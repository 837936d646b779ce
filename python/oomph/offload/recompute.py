"""Runs a call of a module again in backward, in place of keeping what it saves.

PyTorch's own checkpoint does it (``torch.utils.checkpoint``, not reentrant), which
keeps the call's inputs and runs its forward again, under the same random states and
autocast, when backward first wants anything that it saved. What the second forward
writes to buffers is undone.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Generator
from typing import Any

from torch import nn
from torch.utils import _pytree as pytree
from torch.utils import checkpoint

from oomph.offload.calls import flatten
from oomph.offload.purity import Undone

_generator = checkpoint._checkpoint_without_reentrant_generator
_PARAMETERS = inspect.signature(_generator).parameters


class Rerun:
    """One call that will run again; between its begin and its end runs its forward.

    All tensors among its arguments are saved as autograd saves them, so that a change
    in place is noticed, and hooks see them.

    Args:
        module: Whose call.
        args: Its arguments.
        kwargs: Its arguments by name.
    """

    def __init__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        leaves, shape = flatten((args, kwargs))

        def again(*leaves: Any) -> None:
            inputs, named = pytree.tree_unflatten(leaves, shape)
            module.forward(*inputs, **named)

        fixed: list[Any] = [
            True,  # the random states are kept
            lambda: (contextlib.nullcontext(), Undone(module)),
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
