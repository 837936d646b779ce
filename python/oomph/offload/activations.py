"""What autograd saves for backward, kept on the host where the planner says so.

PyTorch's saved-tensor hooks, with the care that they need:

* they are pushed at the end of a step, for what the thread that ended it does in the
  next, in modules and outside of them; in other threads, when one enters its outermost
  module call, and popped when it leaves it. Never above hooks of the user's, nor in
  backward, under ``torch.func``, or while a stream captures;
* the unit is the storage: it leaves once, comes back once, and all views of it are
  rebuilt over it. Parameters, buffers, and what is small stay, and so does whatever is
  more than a block of oomph's own: others may use that in ways that nobody sees;
* hooks switch off PyTorch's check that a saved tensor was not changed in place, so each
  one keeps its version and the check is made here, with PyTorch's own error.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn

from oomph import _torch
from oomph.base.sizes import SMALL_BYTES
from oomph.offload import transfer
from oomph.offload.room import Saved
from oomph.recompute import own_hooks
from oomph.recompute.followers import Follower
from oomph.steps import global_hooks


class Policy(Protocol):
    """Who decides what leaves and when it comes back."""

    def send(
        self, tensor: torch.Tensor, sequence: int
    ) -> transfer.OffloadedStorage | None:
        """Sends its storage to the host, if it is not there, or None if it stays."""

    def kept(self, tensor: torch.Tensor, saved: Saved) -> None:
        """A tensor was saved whose storage is kept on the device."""

    def saved(self) -> int:
        """Counts one saved tensor; gives its place among all of them."""

    def used(self, sequence: int) -> None:
        """Backward is about to use what was saved at this place."""

    @property
    def follower(self) -> Follower | None:
        """What follows the calls of modules, if anything does."""


class _Thread(threading.local):
    module: nn.Module | None = None  # the outermost that is running
    frame: FrameType | None = None  # in which it does
    pushed = False
    stays = False  # pushed when that call ends, too
    suspended = False
    constant: frozenset[int] = frozenset()  # storages of parameters and buffers
    last_hooks: own_hooks.LastHooks | None = None  # while that call goes on


_thread = _Thread()
# Guarded by transfer.lock.
_policy: Policy | None = None
_handles: list[Any] = []
_open_count = 0  # threads within their outermost module call
_originals: tuple[Callable[..., None], Callable[[], None]] | None = None


# ---- Packing


def _may_leave(tensor: torch.Tensor) -> bool:
    """Whether its storage may be elsewhere a while.

    What is trained is held until its gradient is there, wherever it lies.
    """
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cuda
        and not (tensor.is_leaf and tensor.requires_grad)
        and torch._C._functorch.maybe_current_level() is None
        and _torch.own_tier(tensor) is not None
        and tensor.untyped_storage().nbytes() > SMALL_BYTES
        and tensor.untyped_storage()._cdata not in _thread.constant
    )


def _runs_again() -> bool:
    """Whether a function in Python has its backward: it uses what it saves at once.

    So does checkpointing that is reentrant. It leaves only if memory runs out. What
    operators save in backward is for another one, which comes later:
    ``create_graph=True``.
    """
    node = torch._C._current_autograd_node()
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def _is_made_in_forward(tensor: torch.Tensor) -> bool:
    """Whether it lies on a device and belongs to no module."""
    return (
        tensor.is_cuda
        and tensor.layout is torch.strided
        and not (tensor.is_leaf and tensor.requires_grad)
        and tensor.untyped_storage()._cdata not in _thread.constant
    )


# Between the program's operators, which the compiler may be about to trace.
@torch._disable_dynamo  # type: ignore[attr-defined]
def _pack(tensor: torch.Tensor) -> Any:
    policy = _policy
    if policy is None or torch.cuda.is_current_stream_capturing():
        return Saved(tensor, 0)
    sequence = policy.saved()
    if policy.follower is not None and _is_made_in_forward(tensor):
        policy.follower.saved(tensor)
    saved = Saved(tensor, sequence)
    if _may_leave(tensor):
        offloaded = None if _runs_again() else policy.send(tensor, sequence)
        if offloaded is not None:
            saved.leave(offloaded)
        else:
            saved.stream = torch._C._cuda_getCurrentRawStream(tensor.device.index)
            policy.kept(tensor, saved)
    return saved


@torch._disable_dynamo  # type: ignore[attr-defined]
def _unpack(packed: Any) -> torch.Tensor:
    if (policy := _policy) is not None and packed.sequence > 0:
        policy.used(packed.sequence)
    tensor: torch.Tensor = packed.unpack()
    return tensor


# ---- Where the hooks are on


def _may_push() -> bool:
    autograd = torch._C._autograd
    return (
        torch.is_grad_enabled()
        and torch._C._current_graph_task_id() == -1
        and torch._C._functorch.maybe_current_level() is None
        and autograd._saved_tensors_hooks_get_disabled_error_message() is None
        and autograd._top_saved_tensors_default_hooks(True) is None
        and not torch.cuda.is_current_stream_capturing()
    )


def _constants(module: nn.Module) -> frozenset[int]:
    """The storages of its parameters and buffers, as far as they are plain memory."""
    return frozenset(
        tensor.untyped_storage()._cdata
        for tensors in (module.parameters(), module.buffers())
        for tensor in tensors
        if tensor.is_cuda
        and tensor.layout is torch.strided
        and type(tensor) in (torch.Tensor, nn.Parameter)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _enter(module: nn.Module, args: Any) -> None:
    if torch.compiler.is_compiling():
        return
    if _thread.frame is not None and not _is_running(_thread.frame):
        close_scope()
    if _thread.module is None:
        _open(module, sys._getframe(1))
    follower = _follower_of(module)
    if follower is None or own_hooks.has_last(module):
        return
    # PyTorch gives hooks of all modules no arguments by name. Hooks of one
    # module would get them, but be copied and saved with it, and switch fast paths of
    # evaluation off: so they are taken from the call that runs this hook.
    named = sys._getframe(1).f_locals.get("kwargs")
    if named is not None:
        follower.enter(module, args, named)


def _enter_last(module: nn.Module, args: Any, named: Any) -> None:
    """Behind a module's own hooks before forward."""
    if torch.compiler.is_compiling() or not own_hooks.is_last(module):
        return
    if (follower := _follower_of(module)) is not None:
        follower.enter(module, args, named)


def _follower_of(module: nn.Module) -> Follower | None:
    """Who follows a call of a module that begins now in this thread."""
    follower = _policy.follower if _policy is not None else None
    if follower is None or not _thread.pushed or not follower.wants(module):
        return None
    is_free = _is_ours() and torch._C._functorch.maybe_current_level() is None
    return follower if is_free else None


def _is_running(frame: FrameType) -> bool:
    """Whether a call goes on. PyTorch does not report one that Ctrl-C has ended."""
    try:
        frame.clear()
    except RuntimeError:  # it is being executed
        return True
    return False


def _open(module: nn.Module, frame: FrameType) -> None:
    """Begins this thread's scope, at its outermost module call."""
    global _open_count
    _thread.module, _thread.frame = module, frame
    with transfer.lock:
        _open_count += 1
    if _policy is not None:
        _push()
    if _thread.pushed:
        _thread.constant = _constants(module)
        if _policy is not None and (follower := _policy.follower) is not None:
            _thread.last_hooks = own_hooks.LastHooks(_enter_last)
            _thread.last_hooks.put_on(module, follower.wants)


def _push() -> None:
    """Puts the hooks on in this thread, if they may be."""
    if not _thread.pushed and _may_push():
        torch._C._autograd._push_saved_tensors_default_hooks(_pack, _unpack)
        _thread.pushed = True


def _pop() -> None:
    """Takes them off where no module runs and no hooks of others lie above."""
    if _thread.pushed and _is_ours():
        torch._C._autograd._pop_saved_tensors_default_hooks()
        _thread.pushed = False


def cover_thread() -> None:
    """Has the hooks on in this thread from now on, outside of modules, too.

    To be called at the end of a step.
    """
    if _policy is not None and _thread.module is None:
        _push()
        _thread.stays = _thread.pushed


def _leave(module: nn.Module, _: Any, *rest: Any) -> Any:
    replaced = None
    if torch.compiler.is_compiling():
        return replaced
    follower = None if _policy is None else _policy.follower
    if follower is not None and follower.wants(module):
        # Arguments by name and the output; the output alone if there was an exception.
        replaced = follower.leave(module, rest[-1], failed=len(rest) < 2)
    if _thread.module is module:
        close_scope()
    return replaced


def close_scope() -> None:
    """Ends this thread's scope, as at the end of its outermost module call."""
    global _open_count
    if _thread.module is None:
        return
    _thread.module = _thread.frame = None
    if _thread.last_hooks is not None:
        _thread.last_hooks.take_off()
        _thread.last_hooks = None
    if _thread.pushed and _policy is not None and _policy.follower is not None:
        _policy.follower.abandon()
    if not _thread.stays:
        _pop()
        _thread.pushed = _thread.suspended = False
    _thread.constant = frozenset()
    with transfer.lock:
        _open_count -= 1
        _remove_if_unused()


def _is_ours() -> bool:
    if torch._C._autograd._saved_tensors_hooks_get_disabled_error_message() is not None:
        return False
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return top is not None and top[0] is _pack


def _disable(message: str, fail_if_non_empty: bool = True) -> None:
    """Takes ours off where ``torch.func`` and others allow none."""
    assert _originals is not None
    if _thread.pushed and not _thread.suspended and _is_ours():
        torch._C._autograd._pop_saved_tensors_default_hooks()
        _thread.suspended = True
    _originals[0](message, fail_if_non_empty)


def _enable() -> None:
    assert _originals is not None
    _originals[1]()
    if _thread.suspended:
        torch._C._autograd._push_saved_tensors_default_hooks(_pack, _unpack)
        _thread.suspended = False


def start(policy: Policy) -> None:
    """Puts the hooks on, from the next outermost module call of each thread."""
    global _policy, _originals
    with transfer.lock:
        _policy = policy
        if _handles:
            return
    autograd = torch._C._autograd
    if _originals is None:
        disable = autograd._saved_tensors_hooks_disable
        _originals = disable, autograd._saved_tensors_hooks_enable
    autograd._saved_tensors_hooks_disable = _disable
    autograd._saved_tensors_hooks_enable = _enable
    _handles.extend(global_hooks.put_on(_enter, _leave, with_kwargs=True))


def stop() -> None:
    """Takes the hooks off. What was packed stays usable.

    A thread within a module call takes them off when it leaves it. In others they do
    nothing from now on.
    """
    global _policy
    _thread.stays = False
    if _thread.module is None:
        _pop()
    with transfer.lock:
        _policy = None
        _remove_if_unused()


def forget_in_child() -> None:
    """After a fork: nothing leaves any more."""
    global _policy
    transfer.forget_in_child()
    _policy = None


def _remove_if_unused() -> None:
    if _policy is not None or _open_count > 0 or not _handles:
        return
    global_hooks.take_off(_handles)
    assert _originals is not None
    torch._C._autograd._saved_tensors_hooks_disable = _originals[0]
    torch._C._autograd._saved_tensors_hooks_enable = _originals[1]
