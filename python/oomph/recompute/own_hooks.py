"""Modules with hooks of their own: what runs again is their forward, not the hooks.

FSDP gathers a block's parameters in one before its forward and frees them in one after
it; others look at what a layer gives. So a call is followed from within its own hooks,
as a call of ``torch.utils.checkpoint`` in its forward would be. PyTorch runs hooks of
all modules before a module's own, on both sides of forward. Behind it that is as
wanted. Before it modules get one hook more, the last, while an outermost call goes on:
one that stayed would be copied and saved with the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

Hook = Callable[[nn.Module, Any, Any], None]


class _Last:
    """A hook that is to run after all others before a forward."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._hook(module, args, kwargs)


def is_compiled(module: nn.Module) -> bool:
    """Whether its calls are compiled, hooks and all."""
    has_own = getattr(module, "_compiled_call_impl", None) is not None
    return has_own or hasattr(module, "_orig_mod")


def _inside(root: nn.Module) -> Iterator[nn.Module]:
    """All modules in one, but for itself and what is compiled."""
    waiting, seen = [root], {id(root)}
    while waiting:
        for module in waiting.pop()._modules.values():
            if module is None or id(module) in seen or is_compiled(module):
                continue
            seen.add(id(module))
            waiting.append(module)
            yield module


class LastHooks:
    """Hooks behind those that modules have before forward, during an outermost call.

    Args:
        hook: Is given a module and the arguments of its forward.
    """

    def __init__(self, hook: Hook) -> None:
        self._last = _Last(hook)
        self._handles: list[RemovableHandle] = []

    def put_on(self, root: nn.Module, wants: Callable[[nn.Module], bool]) -> None:
        """Puts them on.

        Args:
            root: What is called outermost. It gets none: PyTorch has read its hooks.
            wants: Which of the modules in it are of interest.
        """
        if is_compiled(root):
            return
        for module in _inside(root):
            if module._forward_pre_hooks and wants(module) and not has_last(module):
                put = module.register_forward_pre_hook(self._last, with_kwargs=True)
                self._handles.append(put)

    def take_off(self) -> None:
        """Takes them off."""
        while self._handles:
            self._handles.pop().remove()


def has_last(module: nn.Module) -> bool:
    """Whether a module has a last hook before forward."""
    return any(isinstance(hook, _Last) for hook in module._forward_pre_hooks.values())


def is_last(module: nn.Module) -> bool:
    """Whether it is the last indeed, where a module has any hooks before forward."""
    hooks = module._forward_pre_hooks
    return not hooks or isinstance(next(reversed(hooks.values())), _Last)


def others(module: nn.Module) -> frozenset[int]:
    """The identities of a module's own hooks."""
    return frozenset(
        id(hook)
        for hooks in (
            module._forward_pre_hooks,
            module._forward_hooks,
            module._backward_pre_hooks,
            module._backward_hooks,
        )
        for hook in hooks.values()
        if not isinstance(hook, _Last)
    )
