"""One rank of a world whose other ranks do not exist.

The program finds that it is one of so many ranks, as from a launcher. Its
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
from datetime import timedelta
from typing import Any

from oomph.simulate import absent
from oomph.simulate.rank import VARIABLE

_ID_BYTES = 128  # of NCCL, which nobody reads here


def is_alone() -> bool:
    """Whether this process is such a rank."""
    return bool(os.environ.get(VARIABLE))


def install() -> None:
    """Has PyTorch's process groups do without other ranks. PyTorch is imported."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    import torch.distributed.distributed_c10d as c10d

    # Symmetric memory of others is this rank's own.
    os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")
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
        _send_object_list,
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


def _send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Any = None,
    device: Any = None,
    group_dst: int | None = None,
    *_: Any,
    **__: Any,
) -> None:
    absent.send(object_list, _global_rank(group, dst, group_dst))


def _recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    weights_only: bool = False,
    group_src: int | None = None,
    *_: Any,
    **__: Any,
) -> int:
    sender = _global_rank(group, src, group_src)
    object_list[:] = absent.receive(sender)
    return sender


def _global_rank(group: Any, of_world: int | None, of_group: int | None) -> int:
    """The rank in the world of one that is named there or in a group.

    Raises:
        RuntimeError: It may be any: which one would send cannot be known.
    """
    import torch.distributed as dist

    if of_group is not None:
        among: Any = dist.group.WORLD if group is None else group
        return dist.get_global_rank(among, of_group)
    if of_world is None:
        raise RuntimeError(
            f"rank {os.environ['RANK']} waits for objects of any rank, and none of the "
            "others exists (oomph run --world): name one"
        )
    return of_world


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


def _own_key(key: str) -> str:
    """Where this rank writes what another writes at a key that ends with its rank."""
    head, slash, last = key.rpartition("/")
    return f"{head}/{os.environ['RANK']}" if slash and last.isdecimal() else key


@functools.cache
def _store() -> Any:
    """A store in which others seem to have written what this rank waits for."""
    from torch._C._distributed_c10d import Store

    class Alone(Store):
        def __init__(self) -> None:
            super().__init__()
            self._values: dict[str, bytes] = {}

        def set(self, key: str, value: Any) -> None:
            self._values[key] = value.encode() if isinstance(value, str) else value

        def get(self, key: str) -> bytes:
            found = self._values.get(key)
            if found is None:
                found = self._values.get(_own_key(key), bytes(_ID_BYTES))
            return found

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
