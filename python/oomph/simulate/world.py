"""One rank of a world whose other ranks do not exist.

The program is told that it is one of so many ranks, as a launcher would tell it. Its
process groups are PyTorch's own; where it needs others it gets its own data in place of
theirs, in the shapes that theirs would have. NCCL on the simulated GPU knows of it
(``csrc/sim/libnccl``); the rest is here: the store, and groups of tensors on the CPU.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

VARIABLE = "OOMPH_SIMULATE_WORLD"  # how many ranks there are; libnccl reads it, too
_ID_BYTES = 128  # of NCCL, which nobody reads here
DEVICES_MAX = 16  # of a simulated machine


@dataclass(frozen=True)
class Rank:
    """A rank of a world.

    Attributes:
        rank: From 0.
        size: Of the world.
        local_size: Ranks on each machine, the last one perhaps with fewer.
    """

    rank: int
    size: int
    local_size: int

    def __post_init__(self) -> None:
        """Raises ValueError for what no launcher would start."""
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise ValueError(
                f"rank {self.rank} of a world of {self.size}: ranks are from 0 to "
                f"{max(0, self.size - 1)}"
            )
        if not 1 <= self.local_size <= DEVICES_MAX:
            raise ValueError(
                f"{self.local_size} ranks on a machine: a simulated one has 1 to "
                f"{DEVICES_MAX} devices"
            )

    def variables(self) -> dict[str, str]:
        """What torchrun would tell the process, and that the others do not exist."""
        machine, local_rank = divmod(self.rank, self.local_size)
        here = min(self.local_size, self.size - machine * self.local_size)
        told = {
            "RANK": self.rank,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": local_rank,
            "LOCAL_WORLD_SIZE": here,
            "GROUP_RANK": machine,
            "GROUP_WORLD_SIZE": -(-self.size // self.local_size),
            "ROLE_RANK": self.rank,
            "ROLE_WORLD_SIZE": self.size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": 29500,  # nobody listens there
            VARIABLE: self.size,
        }
        return {name: str(value) for name, value in told.items()}


def with_devices(card: str, count: int) -> str:
    """The description of a card, with as many devices as a machine has ranks."""
    return card if "devices=" in card else f"{card},devices={count}"


def is_alone() -> bool:
    """Whether this process is such a rank."""
    return bool(os.environ.get(VARIABLE))


def install() -> None:
    """Has PyTorch's process groups do without other ranks. PyTorch is imported."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    import torch.distributed.distributed_c10d as c10d

    # PyTorch has a function of the module's name in its place.
    handlers = importlib.import_module("torch.distributed.rendezvous")
    for scheme in handlers._rendezvous_handlers:
        handlers._rendezvous_handlers[scheme] = _meet
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
    _leave_gloo_out(c10d.BackendConfig)
    # Its threads ask the store, which is Python's and ends with it.
    atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        # Bound to a device, it would be split into groups: nobody here knows how large
        # those are.
        kwargs.pop("device_id", None)
        original(*args, **kwargs)

    _put(init_process_group)
    for stand_in in (
        _all_gather_object,
        _broadcast_object_list,
        _gather_object,
        _scatter_object_list,
        _recv_object_list,
    ):
        _put(stand_in)


def _put(function: Callable[..., Any]) -> None:
    """Puts a function in the place of PyTorch's of that name."""
    import torch.distributed as dist
    import torch.distributed.distributed_c10d as c10d

    name = function.__name__.lstrip("_")
    setattr(c10d, name, function)
    setattr(dist, name, function)


# Objects, which PyTorch sends as bytes whose number goes before them. Signatures are
# PyTorch's.


def _copied(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))  # as what comes from others is


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    object_list[:] = [_copied(obj) for _ in object_list]


def _broadcast_object_list(
    object_list: list[Any], src: int | None = None, group: Any = None, **_: Any
) -> None:
    object_list[:] = _copied(object_list)


def _gather_object(
    obj: Any, object_gather_list: list[Any] | None = None, *_: Any, **__: Any
) -> None:
    if object_gather_list is not None:
        _all_gather_object(object_gather_list, obj)


def _scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    *_: Any,
    **__: Any,
) -> None:
    if scatter_object_input_list:
        own = int(os.environ["RANK"]) % len(scatter_object_input_list)
        scatter_object_output_list[0] = _copied(scatter_object_input_list[own])


def _recv_object_list(object_list: list[Any], src: int | None = None, *_: Any) -> None:
    """Raises RuntimeError: what another rank would have sent cannot be known."""
    raise RuntimeError(
        f"rank {os.environ['RANK']} waits for objects of rank {src}, which does not "
        "exist (oomph run --world); a stage of a pipeline does without where it is "
        "given its input_args and output_args"
    )


def _leave_gloo_out(config: Any) -> None:
    """Has PyTorch's table of backends name its own stand-in in place of gloo."""
    original = config.__init__

    @functools.wraps(original)
    def init(self: Any, backend: Any) -> None:
        original(self, backend)
        for device, name in self.device_backend_map.items():
            if name == "gloo":
                self.device_backend_map[device] = "fake"

    config.__init__ = init


def _meet(url: str, *args: Any, **kwargs: Any) -> Iterator[tuple[Any, int, int]]:
    """In place of meeting others: a rendezvous handler of PyTorch."""
    yield _store(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@functools.cache
def _store() -> Any:
    """A store in which others are told to have written what this rank waits for."""
    from torch._C._distributed_c10d import Store

    class Alone(Store):
        def __init__(self) -> None:
            super().__init__()
            self._values: dict[str, bytes] = {}

        def set(self, key: str, value: Any) -> None:
            self._values[key] = value.encode() if isinstance(value, str) else value

        def get(self, key: str) -> bytes:
            return self._values.get(key, bytes(_ID_BYTES))

        def add(self, key: str, amount: int) -> int:
            count = int(self._values.get(key, b"0")) + amount
            self._values[key] = str(count).encode()
            return count

        def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
            self.set(key, desired)
            return self.get(key)

        def check(self, keys: list[str]) -> bool:
            return all(key in self._values for key in keys)

        def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
            return

        def delete_key(self, key: str) -> bool:
            return self._values.pop(key, None) is not None

        def num_keys(self) -> int:
            return len(self._values)

        def set_timeout(self, timeout: timedelta) -> None:
            return

    return Alone()
