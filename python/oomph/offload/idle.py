"""What is idle between steps: the tensors of optimizers, and cuBLAS's workspaces.

Optimizers' state is used by their steps alone, their parameters and gradients by
forward and backward too, all by the thread that trains. So between steps, and before a
capture of that thread, they may move. PyTorch keeps a workspace for each thread and
stream that multiplies matrices, and gets a new one where it has none.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import NamedTuple

import torch

from oomph.memory.residency import address_of, hosted_bytes, is_hosted

# With the thread that steps; 0: backward does.
_optimizers: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = (
    weakref.WeakKeyDictionary()
)


def _stepper() -> int:
    in_backward = torch._C._current_graph_task_id() >= 0
    return 0 if in_backward else threading.get_ident()


def note(optimizer: torch.optim.Optimizer) -> None:
    """An optimizer takes a step."""
    _optimizers[optimizer] = _stepper()


def optimizers() -> list[torch.optim.Optimizer]:
    """All that have taken a step here: what others train, they may be writing to."""
    stepper = _stepper()
    known = list(_optimizers.items())
    return [optimizer for optimizer, other in known if other == stepper]


def state_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """What it has beside what it trains."""
    for state in optimizer.state.values():
        for value in state.values() if isinstance(state, dict) else ():
            if isinstance(value, torch.Tensor):
                yield value


def trained_by(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Parameters and their gradients."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad


def free_workspaces() -> bool:
    """Frees the workspaces of cuBLAS, if no thread beside may be using one."""
    others = (t for t in threading.enumerate() if t is not threading.current_thread())
    in_backward = torch._C._current_graph_task_id() >= 0
    # Of autograd's threads, which wait between steps, Python knows no more than that.
    if in_backward or not all(isinstance(t, threading._DummyThread) for t in others):
        return False
    torch._C._cuda_clearCublasWorkspaces()
    return True


def on_device(device: int) -> list[int]:
    """Where what is idle lies on a device, what is needed most seldom first."""
    known = optimizers()
    states = (tensor for optimizer in known for tensor in state_of(optimizer))
    trained = (tensor for optimizer in known for tensor in trained_by(optimizer))
    found = [t for t in itertools.chain(states, trained) if t.device.index == device]
    return [address for tensor in found if (address := address_of(tensor)) != 0]


class Division(NamedTuple):
    """What optimizers have, by where it is to be; addresses.

    Attributes:
        leaves: State on the device that is to be on the host.
        stays: State on the host that is to be there.
        returns: State, parameters and gradients on the host that need not be there.
    """

    leaves: list[int]
    stays: list[int]
    returns: list[int]


def divide_state(device: int, size_bytes: int) -> Division:
    """Chooses which of optimizers' state is on the host.

    Args:
        device: Index of theirs.
        size_bytes: Of state, that are to be on the host; it is little more.
    """
    found = Division([], [], [])
    known = optimizers()
    states = (t for optimizer in known for t in state_of(optimizer))
    here = {
        address_of(t): t.untyped_storage().nbytes()
        for t in states
        if t.device.index == device and address_of(t) != 0
    }
    away = _of_size(here, size_bytes)
    for address, storage_bytes in here.items():
        host_bytes = hosted_bytes(address)
        if address in away:  # what fell back may have a part on the device
            is_there = host_bytes >= storage_bytes
            (found.stays if is_there else found.leaves).append(address)
        elif host_bytes > 0:
            found.returns.append(address)
    for tensor in (t for optimizer in known for t in trained_by(optimizer)):
        if tensor.device.index == device and is_hosted(address := address_of(tensor)):
            found.returns.append(address)
    return found


def _of_size(sizes: dict[int, int], wanted_bytes: int) -> set[int]:
    """Chooses so many bytes and little more: the largest first, the last one fits.

    Of several as large what is on the host comes first, so that little moves.

    Args:
        sizes: Bytes by address.
        wanted_bytes: So many.
    """
    chosen: set[int] = set()
    here_first = sorted(sizes, key=is_hosted, reverse=True)
    for address in sorted(here_first, key=lambda address: -sizes[address]):
        if sizes[address] <= wanted_bytes:
            chosen.add(address)
            wanted_bytes -= sizes[address]
    rest = [address for address in here_first if address not in chosen]
    if wanted_bytes > 0 and rest:
        chosen.add(min(rest, key=lambda address: sizes[address]))
    return chosen
