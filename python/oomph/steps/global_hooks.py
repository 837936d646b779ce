"""Hooks on the calls of all modules: which are oomph's, and which are of others.

The offload and the watch for leaks each have some. What is of others sees a call twice
where it runs again, and is what PyTorch warns of where a module is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn.modules import module as modules
from torch.utils.hooks import RemovableHandle

_ours: set[int] = set()  # the identities of handles
_has_any = modules._has_any_global_hook


def put_on(
    before: Callable[..., Any], after: Callable[..., Any], with_kwargs: bool = False
) -> list[RemovableHandle]:
    """Puts one before and one after the calls of all modules.

    Args:
        before: Is given the module and the positional arguments.
        after: Is given these and the result; called as well where forward raised.
        with_kwargs: Whether it is given the keyword arguments, too.

    Returns:
        For :func:`take_off`.
    """
    handles = [
        modules.register_module_forward_pre_hook(before),
        modules.register_module_forward_hook(
            after, with_kwargs=with_kwargs, always_call=True
        ),
    ]
    _ours.update(handle.id for handle in handles)
    modules._has_any_global_hook = are_others
    return handles


def take_off(handles: list[RemovableHandle]) -> None:
    """Takes them off, and leaves the list empty."""
    while handles:
        handle = handles.pop()
        handle.remove()
        _ours.discard(handle.id)
    if not _ours:
        modules._has_any_global_hook = _has_any


def are_others() -> bool:
    """Whether all modules have hooks that are not oomph's."""
    both = (modules._global_forward_hooks, modules._global_forward_pre_hooks)
    passes = (modules._global_backward_hooks, modules._global_backward_pre_hooks)
    return any(passes) or any(not table.keys() <= _ours for table in both)
