"""Several devices in one process."""

import pytest
import torch
from support import MIB, Simulated

two = Simulated("256MiB,context=0,memory=real,devices=2", "reserve:0,offload:off")
spilling = Simulated(
    "64MiB,context=0,memory=real,devices=2", "reserve:0,host_limit:64MiB,host_ahead:0"
)


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
