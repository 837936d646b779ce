"""Optimizers that work through their tensors piece by piece.

An optimizer of ``torch.optim`` hands all tensors of a device to one function, which
makes temporary tensors as large as all parameters and passes several times over the
state. Where memory is short, the same function gets one piece of them after another:
its temporary tensors are small then, and what lies on the host is copied to the device
once, worked on there, and copied back to the same address, while the pieces before and
after are on the link too. The functions work element by element, so the values are the
same.

A piece is 1/128 of the device: small enough that ten of them have room, and large
enough that a call of the function for each costs little.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from oomph.offload.headroom import slack_bytes
from oomph.offload.record import Step
from oomph.offload.staging import Pipeline, Tensors, is_dense
from oomph.offload.transfer import Link

# Those that work element by element, by their modules in torch.optim.
_NAMES = (
    *("adadelta", "adagrad", "adam", "adamax", "asgd", "nadam", "radam", "rmsprop"),
    *("rprop", "sgd"),
)
_FUSED = "_fused_{}"
_KINDS = ("_multi_tensor_{}", "_single_tensor_{}", _FUSED)
_PIECE_SHARE = 128  # part of the device that is worked on at a time
_PIECES = 10  # that have room beside: parameters, gradients and state on their way
_ALIGNMENT = 4096  # elements: pieces start where vector instructions do

Function = Callable[..., None]
Column = list[torch.Tensor | None]  # a parameter and what belongs to it


@dataclass
class Plan:
    """How the optimizers of a device work.

    Attributes:
        link: The streams for copies.
        piece_bytes: Of parameters that are worked on at a time.
        has_worked: Whether one has: those whose parameters are on the CPU do not.
    """

    link: Link
    piece_bytes: int
    has_worked: bool = False


_plans: dict[int, Plan] = {}  # by device
_originals: dict[tuple[Any, str], Function] = {}


def start(device: int, plan: Plan) -> None:
    """Has the optimizers of a device work piece by piece from now on."""
    _plans[device] = plan
    if _originals:
        return
    for name in _NAMES:
        module = importlib.import_module(f"torch.optim.{name}")
        for attribute in (kind.format(name) for kind in _KINDS):
            original = getattr(module, attribute, None)
            if original is not None:
                _originals[module, attribute] = original
                setattr(module, attribute, _in_pieces(original))


def stop(device: int) -> None:
    """Has them work as PyTorch's do, from their next step on."""
    _plans.pop(device, None)
    if _plans:
        return
    for (module, attribute), original in _originals.items():
        setattr(module, attribute, original)
    _originals.clear()


def is_on(device: int) -> bool:
    """Whether the optimizers of the device work piece by piece."""
    return device in _plans


def has_worked(device: int) -> bool:
    """Whether one of the device has done so."""
    return is_on(device) and _plans[device].has_worked


class OptimizerChoice:
    """Whether the optimizers of a device work piece by piece.

    Args:
        link: The streams for copies.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self._temporary_bytes = 0  # that they need if they work on all at once

    def short_bytes(self, step: Step, capacity: int, state_bytes: int) -> int:
        """What a device lacks, as a step showed, while they work by pieces.

        Args:
            step: It.
            capacity: Bytes of the device.
            state_bytes: Of their state, that are on the host.
        """
        need_bytes = step.optimizer_bytes + slack_bytes(capacity)
        if not is_on(self.link.device):
            least_bytes = capacity // _PIECE_SHARE * _PIECES
            need_bytes -= max(step.temporary_bytes - least_bytes, 0)
        return need_bytes - state_bytes - capacity

    def choose(self, step: Step, capacity: int, is_state_away: bool) -> None:
        """Has them do so where all at once would not fit, as a step showed.

        Args:
            step: It.
            capacity: Bytes of the device.
            is_state_away: Whether state of theirs is on the host, or is to be.
        """
        device = self.link.device
        pieces = is_on(device)
        if not pieces:
            self._temporary_bytes = step.temporary_bytes
        more = self._temporary_bytes - step.temporary_bytes if pieces else 0
        needs_bytes = step.optimizer_bytes + more + slack_bytes(capacity)
        fits = needs_bytes <= capacity and not is_state_away
        if fits and pieces:
            stop(device)
        elif not fits and not pieces:
            start(device, Plan(self.link, capacity // _PIECE_SHARE))


def _in_pieces(function: Function) -> Function:
    """The function, called for one piece after another where there is a plan."""
    # Fused ones divide gradients by the scale, which their versions do not show.
    writes_all = function.__name__.startswith(_FUSED.format(""))

    @functools.wraps(function)
    def work(*arguments: Any, **options: Any) -> None:
        plan = None if torch.compiler.is_compiling() else _plan_of(arguments)
        if plan is None or options.get("differentiable"):
            function(*arguments, **options)
            return
        plan.has_worked = True
        count = len(arguments[0])
        lists = [a for a in arguments if isinstance(a, list) and len(a) in (0, count)]
        rest = arguments[len(lists) :]
        pieces = _cut(lists, plan.piece_bytes)
        Pipeline(plan.link, lists, writes_all).run(
            pieces, lambda piece: function(*piece, *rest, **options)
        )

    return work


def _plan_of(arguments: tuple[Any, ...]) -> Plan | None:
    """The plan for these arguments; None: they cannot be cut, or need not be."""
    first = arguments[0] if arguments and isinstance(arguments[0], list) else []
    lists = [a for a in arguments if isinstance(a, list)]
    if not first or lists != list(arguments[: len(lists)]):
        return None
    if any(len(entries) not in (0, len(first)) for entries in lists):
        return None
    devices = {parameter.device for parameter in first}
    plan = _plans.get(first[0].device.index) if first[0].is_cuda else None
    if plan is None or len(devices) != 1 or torch.cuda.is_current_stream_capturing():
        return None
    plain = all(
        isinstance(tensor, torch.Tensor)
        and type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not (tensor.is_conj() or tensor.is_neg())
        for entries in lists
        for tensor in entries
    )
    return plan if plain else None


# ---- Pieces


def _cut(lists: list[Tensors], piece_bytes: int) -> Iterator[list[Tensors]]:
    """Pieces of about so many bytes of parameters, all elements once, in order."""
    piece: list[Tensors] = [[] for _ in lists]
    size_bytes = 0
    for i in range(len(lists[0])):
        column = [entries[i] if entries else None for entries in lists]
        for part in _cut_column(column, piece_bytes):
            assert part[0] is not None
            if piece[0] and size_bytes + part[0].nbytes > piece_bytes:
                yield piece
                piece, size_bytes = [[] for _ in lists], 0
            for entries, tensor in zip(piece, part, strict=True):
                if tensor is not None:
                    entries.append(tensor)
            size_bytes += part[0].nbytes
    yield piece


def _cut_column(column: Column, piece_bytes: int) -> Iterator[Column]:
    """One parameter and what belongs to it, in parts if they are large.

    A number, such as the count of steps, goes with the last part; the others get copies
    of it as it is before.
    """
    parameter = column[0]
    assert parameter is not None
    length = max(piece_bytes // parameter.element_size(), 1)
    length = -(-length // _ALIGNMENT) * _ALIGNMENT
    count = parameter.numel()
    if count <= length or not _can_be_flat(column, parameter):
        yield column
        return
    numbers = [t is not None and t.shape != parameter.shape for t in column]
    for start in range(0, count, length):
        end = min(start + length, count)
        yield [
            tensor
            if tensor is None or (is_number and end == count)
            else tensor.clone()
            if is_number
            else _flat(tensor)[start:end]
            for tensor, is_number in zip(column, numbers, strict=True)
        ]


def _can_be_flat(column: Column, parameter: torch.Tensor) -> bool:
    """Whether all have the same elements in the same order, but for numbers."""
    return all(
        tensor is None
        or tensor.numel() == 1
        or (
            tensor.shape == parameter.shape
            and tensor.stride() == parameter.stride()
            and is_dense(tensor)
        )
        for tensor in column
    )


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All elements, in the order in which they lie in memory."""
    return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())
