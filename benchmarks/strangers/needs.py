"""What a program cannot do without: its largest operator, and what it keeps.

An operator's inputs and results must be somewhere while its kernel runs; where they are
more than the card, the kernel uses host pages whatever anybody plans. The same holds,
as long as only what is saved for backward and the state of optimizers may leave, of
what is in use beside these when an optimizer steps: parameters, gradients, copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

FOREACH = ("_foreach", "_fused")  # optimizers take all at once; oomph works in pieces


class Needs(TorchDispatchMode):
    """Sees each operator of a program; those of autograd's threads, too.

    Attributes:
        operator_bytes: Of the largest operator's inputs and results.
        operator: Its name.
        kept_bytes: The most in use as an optimizer steps, without optimizers' state.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operator_bytes = 0
        self.operator = ""
        self.kept_bytes = 0
        self._state: dict[int, int] = {}  # bytes by optimizer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::")
        if not name.startswith(FOREACH):
            used = {
                x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
                for x in tree_iter((args, kwargs, out))
                if isinstance(x, torch.Tensor) and x.is_cuda
            }
            if sum(used.values()) > self.operator_bytes and not _is_view(out, args):
                self.operator_bytes, self.operator = sum(used.values()), name
        return out

    def before_optimizer(self, optimizer: Any, *_: Any) -> None:
        states = (v for kept in optimizer.state.values() for v in kept.values())
        self._state[id(optimizer)] = sum(
            x.untyped_storage().nbytes()
            for x in states
            if isinstance(x, torch.Tensor) and x.is_cuda
        )
        kept_bytes = torch.cuda.memory_allocated() - sum(self._state.values())
        self.kept_bytes = max(self.kept_bytes, kept_bytes)


def _is_view(out: Any, args: Any) -> bool:
    """Whether an operator only looks at its input in another way."""
    return isinstance(out, torch.Tensor) and out._is_view() and out.numel() > 0


def needs_of(program: Callable[[], Any], settings: str) -> dict[str, Any]:
    """Runs a program without a limit, in this process."""
    import oomph
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    oomph.install(settings)
    needs = Needs()
    register_optimizer_step_pre_hook(needs.before_optimizer)
    with needs:
        for _ in program() or ():
            pass
    return {
        "operator_bytes": needs.operator_bytes,
        "operator": needs.operator,
        "kept_bytes": needs.kept_bytes,
    }
