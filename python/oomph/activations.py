"""What autograd saves for backward, kept on the host where the planner says so.

PyTorch's saved-tensor hooks, with the care that they need:

* they are pushed when a thread enters its outermost module call and popped when it
  leaves it, never above hooks of the user's, nor in backward, under ``torch.func``, or
  while a stream captures;
* the unit is the storage: it leaves once, comes back once, and all views of it are
  rebuilt over it. Parameters, buffers, and what is small stay;
* hooks switch off PyTorch's check that a saved tensor was not changed in place, so each
  one keeps its version and the check is made here, with PyTorch's own error.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from oomph import _torch, transfer

SMALL_BYTES = 1 << 20  # storages up to this size stay


class Policy(Protocol):
    """Who decides what leaves and when it comes back."""

    def send(
        self, storage: torch.UntypedStorage, version: object, sequence: int
    ) -> transfer.Slot | None:
        """Sends a storage to the host, or None if it is to stay."""

    def saved(self) -> int:
        """Counts one saved tensor; gives its place among all of them."""

    def used(self, sequence: int) -> None:
        """Backward is about to use what was saved at this place."""


class _Thread(threading.local):
    module: nn.Module | None = None  # the outermost that is running
    pushed = False
    suspended = False
    constant: frozenset[int] = frozenset()  # addresses of parameters and buffers


_thread = _Thread()
_policy: Policy | None = None
_handles: list[Any] = []
_open_count = 0  # threads within their outermost module call; guarded by _lock
# By address of the storage that was sent.
_slots: weakref.WeakValueDictionary[int, transfer.Slot] = weakref.WeakValueDictionary()
_lock = threading.RLock()
_originals: tuple[Callable[..., None], Callable[[], None]] | None = None


# ---- Packing


class _Kept:
    """A tensor that stays, and its version."""

    __slots__ = ("sequence", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, sequence: int) -> None:
        self.tensor = tensor.detach()  # what has a graph would keep itself alive
        self.version = tensor._version
        self.sequence = sequence

    def unpack(self) -> torch.Tensor:
        if self.tensor._version != self.version:
            kind, size = self.tensor.type(), self.tensor.shape
            raise _modified(kind, size, self.tensor._version, self.version)
        return self.tensor


class _Sent:
    """A tensor whose storage went to the host."""

    __slots__ = ("like", "sequence", "slot", "version")

    def __init__(self, tensor: torch.Tensor, slot: transfer.Slot) -> None:
        self.like = transfer.shape_of(tensor)
        self.version = tensor._version
        self.sequence = slot.sequence
        self.slot = slot
        slot.users += 1

    def unpack(self) -> torch.Tensor:
        now = _torch.version_now(self.slot.version)
        if now != self.version:
            dtype, size = self.like[:2]
            kind = torch.empty(0, dtype=dtype, device=self.slot.link.out.device).type()
            raise _modified(kind, size, now, self.version)
        return transfer.view(self.slot.take(), self.like)


def _modified(kind: str, size: torch.Size, now: int, expected: int) -> RuntimeError:
    """The error that PyTorch raises without hooks."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an "
        f"inplace operation: [{kind} {list(size)}] is at version {now}; expected "
        f"version {expected} instead. Hint: enable anomaly detection to find the "
        "operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True)."
    )


def _may_leave(tensor: torch.Tensor) -> bool:
    """Whether the tensor is plain memory of a device that may be elsewhere a while."""
    return (
        tensor.is_cuda
        and type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
        and torch._C._functorch.maybe_current_level() is None
        and torch._C._current_graph_task_id() == -1
        and tensor.untyped_storage().nbytes() > SMALL_BYTES
        and not torch.cuda.is_current_stream_capturing()
    )


def _pack(tensor: torch.Tensor) -> Any:
    policy = _policy
    if policy is None:
        return _Kept(tensor, 0)
    sequence = policy.saved()
    if not _may_leave(tensor):
        return _Kept(tensor, sequence)
    storage = tensor.untyped_storage()
    address = storage.data_ptr()
    if address in _thread.constant:
        return _Kept(tensor, sequence)
    with _lock:
        slot = _known(address, tensor)
        if slot is None:
            slot = policy.send(storage, _torch.version_of(tensor), sequence)
            if slot is None:
                return _Kept(tensor, sequence)
            _slots[address] = slot
            tensor.record_stream(slot.link.out)
        return _Sent(tensor, slot)


def _known(address: int, tensor: torch.Tensor) -> transfer.Slot | None:
    """The slot that has this very storage as it is now."""
    slot = _slots.get(address)
    if slot is None or slot.has_left() or slot.copied_version != tensor._version:
        _slots.pop(address, None)
        return None
    return slot


def _unpack(packed: Any) -> torch.Tensor:
    policy = _policy
    if policy is not None:
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
    """The addresses of its parameters and buffers, as far as they are plain memory."""
    return frozenset(
        tensor.untyped_storage().data_ptr()
        for tensors in (module.parameters(), module.buffers())
        for tensor in tensors
        if tensor.is_cuda
        and tensor.layout is torch.strided
        and type(tensor) in (torch.Tensor, nn.Parameter)
    )


def _enter(module: nn.Module, _: Any) -> None:
    if torch.compiler.is_compiling() or _thread.module is not None:
        return
    global _open_count
    _thread.module = module
    with _lock:
        _open_count += 1
    if _policy is not None and _may_push():
        _thread.constant = _constants(module)
        torch._C._autograd._push_saved_tensors_default_hooks(_pack, _unpack)
        _thread.pushed = True


def _leave(module: nn.Module, *_: Any) -> None:
    if torch.compiler.is_compiling() or _thread.module is not module:
        return
    close_scope()


def close_scope() -> None:
    """Ends this thread's scope, as at the end of its outermost module call."""
    global _open_count
    if _thread.module is None:
        return
    _thread.module = None
    if _thread.pushed and _is_ours():
        torch._C._autograd._pop_saved_tensors_default_hooks()
    _thread.pushed = _thread.suspended = False
    _thread.constant = frozenset()
    with _lock:
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
    with _lock:
        if _policy is not None:
            raise RuntimeError("activations are watched already")
        _policy = policy
        if _handles:
            return
    autograd = torch._C._autograd
    if _originals is None:
        _originals = (
            autograd._saved_tensors_hooks_disable,
            autograd._saved_tensors_hooks_enable,
        )
    autograd._saved_tensors_hooks_disable = _disable
    autograd._saved_tensors_hooks_enable = _enable
    _handles.append(nn.modules.module.register_module_forward_pre_hook(_enter))
    _handles.append(
        nn.modules.module.register_module_forward_hook(_leave, always_call=True)
    )


def stop() -> None:
    """Takes the hooks off. What was packed stays usable.

    A thread within a module call takes them off when it leaves it.
    """
    global _policy
    with _lock:
        _policy = None
        _remove_if_unused()


def forget_in_child() -> None:
    """After a fork: nothing leaves any more. The lock may be another thread's."""
    global _policy
    _policy = None


def _remove_if_unused() -> None:
    if _policy is not None or _open_count > 0 or not _handles:
        return
    while _handles:
        _handles.pop().remove()
    assert _originals is not None
    torch._C._autograd._saved_tensors_hooks_disable = _originals[0]
    torch._C._autograd._saved_tensors_hooks_enable = _originals[1]
