"""Several devices in one process."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from support import MIB, Simulated, cuda_runtime

two = Simulated("256MiB,context=0,memory=real,devices=2", "reserve:0,offload:off")
spilling = Simulated(
    "64MiB,context=0,memory=real,devices=2", "reserve:0,host_limit:64MiB,host_ahead:0"
)

VALUES = "256MiB,context=0,memory=values,devices=2"
computing = Simulated(VALUES, "reserve:0,offload:off")
computing_native = Simulated(VALUES, None)


def take(size_bytes: int, device: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{device}")


@two
def test_each_device_has_memory_and_statistics_of_its_own():
    a, b = take(200 * MIB, 0), take(100 * MIB, 1)
    assert torch.cuda.memory_allocated(0) == 200 * MIB
    assert torch.cuda.memory_allocated(1) == 100 * MIB
    with pytest.raises(torch.OutOfMemoryError) as caught:
        take(200 * MIB, 1)
    assert "GPU 1 has" in str(caught.value)
    del a, b


@two
def test_oomph_stats_is_of_the_current_device_by_default():
    import oomph

    a = take(8 * MIB, 1)
    with torch.cuda.device(1):
        assert oomph.stats()["device_bytes"] == 8 * MIB
    assert oomph.stats()["device_bytes"] == 0
    del a


@two
def test_oomph_stats_of_a_device_that_is_not_there_is_an_error():
    import oomph

    with pytest.raises(ValueError, match="there is no device 2; there are 2"):
        oomph.stats(2)
    with pytest.raises(ValueError, match="no device"):
        oomph.stats(-1)


@two
def test_contents_travel_between_devices():
    wanted = torch.randint(256, (20 * MIB,), dtype=torch.uint8)
    a = wanted.to("cuda:0")
    b = a.to("cuda:1")
    c = b.to("cuda:0", non_blocking=True)
    assert torch.equal(b.cpu(), wanted)
    assert torch.equal(c.cpu(), wanted)
    del a, b, c


@two
def test_memory_mapped_after_the_first_copy_is_visible_to_the_peer_too():
    for size in (4 * MIB, 64 * MIB, 128 * MIB):
        wanted = torch.randint(256, (size,), dtype=torch.uint8)
        assert torch.equal(wanted.to("cuda:0").to("cuda:1").cpu(), wanted)


@two
def test_a_block_is_freed_on_its_own_device_whatever_is_current():
    a = take(8 * MIB, 0)
    with torch.cuda.device(1):
        del a
    assert torch.cuda.memory_allocated(0) == 0


@two
def test_a_block_may_be_recorded_on_a_stream_of_its_device_from_another():
    side = torch.cuda.Stream(0)
    a = take(8 * MIB, 0)
    with torch.cuda.device(1):
        a.record_stream(side)
        del a
        torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(0) == 0


@two
def test_empty_cache_empties_every_device():
    take(8 * MIB, 0)
    take(8 * MIB, 1)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(0) == torch.cuda.memory_reserved(1) == 0


@two
def test_a_snapshot_has_the_segments_and_traces_of_every_device():
    torch.cuda.memory._record_memory_history(context=None)
    try:
        a, b = take(8 * MIB, 0), take(8 * MIB, 1)
        snapshot = torch.cuda.memory._snapshot()
        del a, b
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert {segment["device"] for segment in snapshot["segments"]} == {0, 1}
    assert [len(trace) for trace in snapshot["device_traces"]] == [2, 2]


@two
def test_a_fraction_is_set_for_one_device():
    torch.cuda.set_per_process_memory_fraction(0.5, 1)
    try:
        a = take(200 * MIB, 0)
        with pytest.raises(torch.OutOfMemoryError):
            take(200 * MIB, 1)
        del a
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 1)


@spilling
def test_the_host_limit_is_shared_by_the_devices():
    kept = [take(64 * MIB, 0), take(64 * MIB, 1), take(40 * MIB, 0)]
    with pytest.raises(torch.OutOfMemoryError):
        take(40 * MIB, 1)
    kept.append(take(24 * MIB, 1))
    del kept


@two
def test_a_device_that_is_not_there_cannot_be_used():
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        take(1000, 2)


class Foreign:
    """Floats on the current device that no allocator of PyTorch's knows.

    Args:
        size: How many.
    """

    def __init__(self, size: int) -> None:
        self._runtime = cuda_runtime()
        self._pointer = ctypes.c_void_p()
        assert self._runtime.cudaMalloc(ctypes.byref(self._pointer), size * 4) == 0
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "<f4",
            "data": (self._pointer.value, False),
            "version": 2,
        }

    def close(self) -> None:
        """Gives it back."""
        assert self._runtime.cudaFree(self._pointer) == 0


@contextmanager
def foreign(size: int, device: int) -> Iterator[torch.Tensor]:
    """A tensor of a library's own memory."""
    with torch.cuda.device(device):
        memory = Foreign(size)
    yield torch.as_tensor(memory, device=f"cuda:{device}")
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    memory.close()


def fill_foreign_memory_from_the_peer() -> None:
    wanted = torch.arange(0, 4096, 2, dtype=torch.float32)
    source = torch.arange(4096, dtype=torch.float32, device="cuda:0")[::2]
    with foreign(2048, device=1) as there:  # not in one piece: a kernel copies
        there.copy_(source)
        assert torch.equal(there.cpu(), wanted)
        back = torch.empty(4096, device="cuda:0")[::2]
        back.copy_(there)
        assert torch.equal(back.cpu(), wanted)


@computing
def test_a_kernel_reaches_memory_of_a_peer_that_is_not_ours():
    fill_foreign_memory_from_the_peer()


@computing_native
def test_a_kernel_reaches_memory_of_a_peer_natively():
    fill_foreign_memory_from_the_peer()
