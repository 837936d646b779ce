"""Where tensors lie, and moving them between device and host, their addresses kept.

A tensor on the host stays a CUDA tensor: kernels work on it at the speed of the link.
While tensors move nothing may use them, or those moved before: the GPU is waited for
first, but no other thread may launch work on them until the call has returned.

What moves is the whole storage, and memory moves by pages. A page that several live
tensors share, at their ends, moves once all of them do; a tensor without a page of its
own moves only together with those beside it. So hand over all that belongs together,
such as a model's parameters, in one call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from oomph import _C

Tensors = torch.Tensor | Iterable[torch.Tensor]


class Moved(NamedTuple):
    """What :func:`oomph.evict`, :func:`oomph.promote` and :func:`oomph.pin` moved.

    Attributes:
        moved_bytes: Bytes that moved, those that were there already not included.
        left: For each tensor that stayed where it was, its shape and the reason.

    Example:
        >>> moved = oomph.evict(model.parameters())
        >>> moved.moved_bytes, moved.left
        (83886080, ())
    """

    moved_bytes: int
    left: tuple[str, ...]


@dataclass(frozen=True)
class Residency:
    """Where tensors are, as :func:`oomph.residency` says.

    Attributes:
        device_bytes: Bytes of their storages on the device.
        host_bytes: Bytes of their storages on the host.

    Example:
        >>> found = oomph.residency(model.parameters())
        >>> found.device_bytes + found.host_bytes
        83886080
    """

    device_bytes: int
    host_bytes: int

    @property
    def place(self) -> str:
        """Where all of it is: ``"device"``, ``"host"`` or ``"both"``."""
        if self.host_bytes == 0:
            return "device"
        return "host" if self.device_bytes == 0 else "both"


class _Storage(NamedTuple):
    """The storage of a tensor: the unit that moves."""

    device: int
    address: int
    size_bytes: int
    name: str


def _storage(tensor: torch.Tensor) -> _Storage:
    """Finds a tensor's storage.

    Raises:
        TypeError: It is no tensor.
        ValueError: It is not on a CUDA device.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(tensor).__name__}")
    name = f"tensor of shape {tuple(tensor.shape)}"
    if tensor.device.type != "cuda":
        raise ValueError(f"the {name} is on {tensor.device}: only CUDA tensors move")
    storage = tensor.untyped_storage()
    return _Storage(
        tensor.device.index or 0, storage.data_ptr(), storage.nbytes(), name
    )


def _listed(tensors: Tensors) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _storages(tensors: Tensors) -> list[_Storage]:
    """The storages of one tensor or several, each once, without empty ones."""
    found = {s.address: s for s in map(_storage, _listed(tensors)) if s.size_bytes > 0}
    return list(found.values())


def _place(storage: _Storage) -> tuple[int, int]:
    """The tier that a storage belongs to, and its bytes on the host.

    Raises:
        ValueError: The memory is not oomph's.
    """
    try:
        tier, host_bytes = _C.place(storage.address)
    except ValueError:
        raise ValueError(
            f"the {storage.name} has memory that is not oomph's: was it made before "
            "oomph.install(), or shared by another process?"
        ) from None
    return tier, min(host_bytes, storage.size_bytes)


def _move(tensors: Tensors, tier: int) -> Moved:
    storages = _storages(tensors)
    for storage in storages:
        _place(storage)  # all are oomph's, or nothing moves
    moved_bytes, left = 0, []
    for device in sorted({storage.device for storage in storages}):
        here = [storage for storage in storages if storage.device == device]
        moved, reasons = _C.move(device, tier, [s.address for s in here])
        moved_bytes += moved
        left += [
            f"{storage.name}: {reason}"
            for storage, reason in zip(here, reasons, strict=True)
            if reason is not None
        ]
    if left and isinstance(tensors, torch.Tensor):
        raise ValueError(f"{left[0]}, so it stays where it is")
    return Moved(moved_bytes, tuple(left))


def evict(tensors: Tensors) -> Moved:
    """Moves tensors to the host, at the same addresses and with their contents.

    They remain there until :func:`promote`, or until they are freed. The call waits for
    the GPU. No other thread may launch work that uses them until it has returned.

    Args:
        tensors: A CUDA tensor, or several. Whole storages move.

    Returns:
        How many bytes moved, and which of several tensors stayed and why: those of at
        most 1 MiB, those that share all their pages with live tensors that do not
        move, those of CUDA graphs and MemPools, those that other processes use, pinned
        ones, and those that the host has no room for.

    Raises:
        TypeError: An argument is not a tensor.
        ValueError: A tensor is not on a CUDA device, its memory is not oomph's, or the
            only tensor stayed.
        RuntimeError: A stream captures, or no host pages can be mapped here. Then
            nothing has moved.

    Example:
        >>> oomph.evict(model.parameters())
        Moved(moved_bytes=83886080, left=())
    """
    return _move(tensors, _C.TIER_HOST)


def promote(tensors: Tensors) -> Moved:
    """Moves tensors to the device, at the same addresses and with their contents.

    The opposite of :func:`evict`, also for tensors that fell back to the host. As many
    move as there is room for within the limit and beside the reserve, in the order
    given.

    Args:
        tensors: A CUDA tensor, or several. Whole storages move.

    Returns:
        How many bytes moved, and which of several tensors stayed and why.

    Raises:
        TypeError: An argument is not a tensor.
        ValueError: As for :func:`evict`.
        RuntimeError: A stream captures.

    Example:
        >>> oomph.promote(model.parameters()).moved_bytes
        83886080
    """
    return _move(tensors, _C.TIER_DEVICE)


def pin(tensors: Tensors) -> Moved:
    """Moves tensors to the device and keeps them there: :func:`evict` skips them.

    They stay pinned until :func:`unpin`, or until they are freed.

    Args:
        tensors: A CUDA tensor, or several.

    Returns:
        How many bytes moved, and which of several tensors stayed and why; these are
        not pinned.

    Raises:
        TypeError: An argument is not a tensor.
        ValueError: As for :func:`evict`.
        RuntimeError: A stream captures.

    Example:
        >>> oomph.pin(model.head.weight)  # it was on the device already
        Moved(moved_bytes=0, left=())
    """
    if not isinstance(tensors, torch.Tensor):
        tensors = list(tensors)
    moved = promote(tensors)
    for storage in _storages(tensors):
        if _place(storage)[0] == _C.TIER_DEVICE:
            _C.pin(storage.address, True)
    return moved


def unpin(tensors: Tensors) -> None:
    """Undoes :func:`pin`. Has no effect on tensors that are not pinned.

    Args:
        tensors: A CUDA tensor, or several.

    Raises:
        TypeError: An argument is not a tensor.
        ValueError: A tensor is not on a CUDA device, or its memory is not oomph's.

    Example:
        >>> oomph.unpin(model.head.weight)
    """
    for storage in _storages(tensors):
        _place(storage)
        _C.pin(storage.address, False)


def residency(tensors: Tensors) -> Residency:
    """Tells where tensors are.

    Args:
        tensors: A CUDA tensor, or several; storages that they share count once.

    Returns:
        Bytes of their storages on the device and on the host.

    Raises:
        TypeError: An argument is not a tensor.
        ValueError: A tensor is not on a CUDA device, or its memory is not oomph's.

    Example:
        >>> oomph.residency(model.parameters()).place
        'device'
    """
    storages = _storages(tensors)
    host_bytes = sum(_place(storage)[1] for storage in storages)
    return Residency(sum(s.size_bytes for s in storages) - host_bytes, host_bytes)


def is_hosted(address: int) -> bool:
    """Whether it is that of a block of oomph's on the host, or split."""
    return hosted_bytes(address) > 0


def hosted_bytes(address: int) -> int:
    """Bytes on the host of the block of oomph's there; 0: it belongs to the device."""
    try:
        tier, host_bytes = _C.place(address)
    except ValueError:  # other memory
        return 0
    return host_bytes if tier == _C.TIER_HOST else 0


def address_of(tensor: torch.Tensor) -> int:
    """Of its storage; 0: it is no plain memory of a device."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not (plain and tensor.is_cuda and tensor.layout is torch.strided):
        return 0
    return tensor.untyped_storage().data_ptr()
