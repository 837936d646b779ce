"""What torch.cuda.memory and torch.accelerator tell and do, over oomph."""

import gc
import weakref

import pytest
import torch
from support import GIB, KIB, MIB, Simulated

simulated = Simulated("1GiB,context=0", "reserve:0,offload:off")
limited = Simulated("1GiB,context=0", "reserve:0,offload:off,device_limit:256MiB")

PAGE = 2 * MIB


def take(size_bytes: int, device: str = "cuda") -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device=device)


def stat(name: str) -> int:
    return torch.cuda.memory_stats()[name]


# ---- Counting


@simulated
def test_memory_allocated_counts_the_bytes_of_blocks_in_use():
    a, b = take(3 * MIB), take(100)
    assert torch.cuda.memory_allocated() == 3 * MIB + 512
    del a
    assert torch.cuda.memory_allocated() == 512
    del b
    assert torch.cuda.memory_allocated() == 0


@simulated
def test_requested_bytes_count_what_was_asked_for():
    a = take(100)
    assert stat("requested_bytes.all.current") == 100
    assert stat("allocated_bytes.all.current") == 512
    del a


@simulated
def test_memory_reserved_counts_pages_until_empty_cache_returns_them():
    a = take(3 * MIB)
    assert torch.cuda.memory_reserved() == 2 * PAGE
    del a
    assert torch.cuda.memory_reserved() == 2 * PAGE
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


@simulated
def test_empty_cache_returns_the_pages_to_the_driver():
    from remote import sim_stats

    before = sim_stats().used_bytes
    a = take(64 * MIB)
    assert sim_stats().used_bytes == before + 64 * MIB
    del a
    torch.cuda.empty_cache()
    assert sim_stats().used_bytes == before


@simulated
def test_empty_cache_keeps_what_is_in_use():
    a, b = take(3 * MIB), take(8 * MIB)
    address = a.data_ptr()
    del b
    torch.cuda.empty_cache()
    assert a.data_ptr() == address
    assert torch.cuda.memory_reserved() == 2 * PAGE


@simulated
def test_peaks_stay_until_they_are_reset():
    a = take(32 * MIB)
    del a
    assert torch.cuda.max_memory_allocated() == 32 * MIB
    assert torch.cuda.max_memory_reserved() == 32 * MIB
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    assert torch.cuda.max_memory_reserved() == 0


@simulated
def test_a_reset_of_peaks_keeps_what_is_in_use():
    a, b = take(32 * MIB), take(4 * MIB)
    del a
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 4 * MIB
    del b


@simulated
def test_accumulated_counts_grow_until_they_are_reset():
    for _ in range(3):
        take(4 * MIB)
    assert stat("allocation.all.allocated") == 3
    assert stat("allocated_bytes.large_pool.freed") == 12 * MIB
    torch.cuda.reset_accumulated_memory_stats()
    assert stat("allocation.all.allocated") == 0
    assert stat("allocated_bytes.large_pool.freed") == 0


@simulated
def test_small_and_large_blocks_are_counted_apart():
    small, large = take(MIB), take(MIB + 1)
    assert stat("allocation.small_pool.current") == 1
    assert stat("allocation.large_pool.current") == 1
    assert stat("allocated_bytes.small_pool.current") == MIB
    assert stat("allocated_bytes.large_pool.current") == MIB + 512
    del small, large


@simulated
def test_a_freed_block_is_active_while_another_stream_may_use_it():
    from remote import sim

    side = torch.cuda.Stream()
    sim.oomph_sim_hold(side.cuda_stream)
    with torch.cuda.stream(side):
        torch.cuda._sleep(1000)
    a = take(4 * MIB)
    a.record_stream(side)
    del a
    assert stat("allocated_bytes.all.current") == 0
    assert stat("active_bytes.all.current") == 4 * MIB
    sim.oomph_sim_release(side.cuda_stream)
    side.synchronize()


@simulated
def test_requested_bytes_are_counted_while_another_stream_may_use_the_block():
    from remote import sim

    side = torch.cuda.Stream()
    sim.oomph_sim_hold(side.cuda_stream)
    with torch.cuda.stream(side):
        torch.cuda._sleep(1000)
    a = take(4 * MIB)
    a.record_stream(side)
    del a
    assert stat("requested_bytes.all.current") == 4 * MIB
    sim.oomph_sim_release(side.cuda_stream)
    side.synchronize()
    torch.cuda.empty_cache()
    assert stat("requested_bytes.all.current") == 0


@simulated
def test_memory_stats_has_every_key_of_the_native_allocator():
    keys = set(torch.cuda.memory_stats())
    figures = [
        *("allocation", "segment", "active", "inactive_split"),
        *("allocated_bytes", "reserved_bytes", "active_bytes"),
        *("inactive_split_bytes", "requested_bytes"),
    ]
    metrics = ("current", "peak", "allocated", "freed")
    for figure in figures:
        for kind in ("all", "small_pool", "large_pool"):
            assert {f"{figure}.{kind}.{metric}" for metric in metrics} <= keys
    for figure in ("oversize_allocations", "oversize_segments"):
        assert {f"{figure}.{metric}" for metric in metrics} <= keys
    assert {"num_alloc_retries", "num_ooms", "max_split_size"} <= keys
    assert {"num_sync_all_streams", "num_device_alloc", "num_device_free"} <= keys


@simulated
def test_memory_summary_is_the_table_of_the_native_allocator():
    a = take(4 * MIB)
    text = torch.cuda.memory_summary()
    allocated = next(row for row in text.splitlines() if "Allocated memory" in row)
    assert "PyTorch CUDA memory summary" in text
    assert allocated.split("|")[2].split() == ["4096", "KiB"]
    assert "4096 KiB" in torch.cuda.memory_summary(abbreviated=True)
    del a


@simulated
def test_out_of_memory_is_counted():
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            take(2 * GIB)
    assert stat("num_ooms") == 2


@simulated
def test_device_allocations_count_pages():
    a = take(8 * MIB)
    assert stat("num_device_alloc") == 4
    del a
    torch.cuda.empty_cache()
    assert stat("num_device_free") == 4


@simulated
def test_the_nested_statistics_hold_the_same_figures():
    a = take(4 * MIB)
    nested = torch.cuda.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == 4 * MIB
    del a


# ---- torch.accelerator


@simulated
def test_torch_accelerator_tells_the_same_figures():
    a = take(4 * MIB)
    accelerator, cuda = torch.accelerator, torch.cuda
    assert accelerator.memory_allocated() == cuda.memory_allocated() == 4 * MIB
    assert accelerator.memory_reserved() == cuda.memory_reserved()
    assert accelerator.max_memory_allocated() == cuda.max_memory_allocated()
    assert accelerator.max_memory_reserved() == cuda.max_memory_reserved()
    reported = cuda.memory_stats()
    for name, value in accelerator.memory_stats().items():
        assert reported.get(name, value) == value
    assert reported["allocated_bytes.all.current"] == 4 * MIB
    del a


@simulated
def test_torch_accelerator_resets_and_empties_too():
    take(4 * MIB)
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved() == 0
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == 0
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.accelerator.memory_stats()["allocation.all.allocated"] == 0


# ---- Limits


@simulated
def test_a_memory_fraction_limits_what_can_be_taken():
    try:
        torch.cuda.set_per_process_memory_fraction(0.25)
        assert torch.cuda.get_per_process_memory_fraction() == 0.25
        a = take(GIB // 4)
        with pytest.raises(torch.OutOfMemoryError):
            take(PAGE)
        del a
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    b = take(GIB // 2)
    del b


@limited
def test_mem_get_info_agrees_with_a_device_limit():
    assert torch.cuda.mem_get_info() == (256 * MIB, 256 * MIB)
    a = take(64 * MIB)
    assert torch.cuda.mem_get_info() == (192 * MIB, 256 * MIB)
    assert torch.cuda.mem_get_info("cuda") == torch.cuda.mem_get_info(0)
    assert torch.cuda.memory.mem_get_info() == torch.cuda.mem_get_info()
    del a


@limited
def test_torch_accelerator_memory_info_agrees_with_a_device_limit():
    assert torch.accelerator.get_memory_info() == (256 * MIB, 256 * MIB)


@simulated
def test_mem_get_info_is_the_drivers_without_a_limit():
    a = take(64 * MIB)
    assert torch.cuda.mem_get_info() == (GIB - 64 * MIB, GIB)
    del a


@limited
def test_a_device_limit_is_what_can_be_taken():
    a = take(256 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        take(PAGE)
    del a


@simulated
def test_free_memory_can_serve_any_request_whatever_hole_it_lies_in():
    blocks = [take(32 * MIB) for _ in range(32)]
    assert torch.cuda.mem_get_info()[0] == 0
    del blocks[::2]
    a = take(512 * MIB)
    del a, blocks


# ---- Raw memory


@simulated
def test_memory_can_be_taken_and_given_by_address():
    address = torch.cuda.caching_allocator_alloc(3 * MIB)
    assert torch.cuda.memory_allocated() == 3 * MIB
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == 0


@simulated
def test_memory_taken_by_address_belongs_to_the_stream_named():
    side = torch.cuda.Stream()
    first = torch.cuda.caching_allocator_alloc(3 * MIB, stream=side)
    torch.cuda.caching_allocator_delete(first)
    assert torch.cuda.caching_allocator_alloc(3 * MIB) != first
    again = torch.cuda.caching_allocator_alloc(3 * MIB, stream=side)
    assert again == first
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                torch.cuda.caching_allocator_delete(block["address"])


@simulated
def test_the_backend_is_named():
    assert torch.cuda.get_allocator_backend() == "oomph"


# ---- Tensors


@simulated
def test_an_empty_tensor_takes_nothing():
    a = take(0)
    assert a.data_ptr() == 0
    assert stat("allocation.all.current") == 0


@simulated
def test_a_storage_can_be_resized():
    storage = take(4 * MIB).untyped_storage()
    storage.resize_(12 * MIB)
    assert torch.cuda.memory_allocated() == 12 * MIB
    storage.resize_(0)
    assert torch.cuda.memory_allocated() == 0


@simulated
def test_views_share_a_block():
    a = take(4 * MIB)
    b = a[MIB:]
    del a
    assert torch.cuda.memory_allocated() == 4 * MIB
    del b
    assert torch.cuda.memory_allocated() == 0


@simulated
def test_a_cycle_is_freed_by_the_collector():
    class Node:
        pass

    node = Node()
    node.self, node.tensor = node, take(4 * MIB)
    gone = weakref.ref(node)
    del node
    gc.collect()
    assert gone() is None
    assert torch.cuda.memory_allocated() == 0


@simulated
def test_blocks_are_aligned_as_the_native_allocators():
    for size in (1, 511, 513, 70 * KIB, 3 * MIB + 1):
        a, b = take(size), take(size)
        assert a.data_ptr() % 512 == 0
        assert b.data_ptr() % 512 == 0


# ---- cudnn.benchmark's query


@simulated
def test_cudnn_benchmark_runs_a_convolution():
    torch.backends.cudnn.benchmark = True
    try:
        layer = torch.nn.Conv2d(3, 8, 3, padding=1).cuda()
        layer(torch.randn(2, 3, 32, 32, device="cuda")).sum().backward()
    finally:
        torch.backends.cudnn.benchmark = False


# ---- Errors of the caller


@simulated
@pytest.mark.parametrize(
    "call",
    [
        "memory_stats",
        "memory_allocated",
        "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
        "get_per_process_memory_fraction",
    ],
)
def test_a_device_that_is_not_there_is_an_error(call):
    with pytest.raises((RuntimeError, ValueError)):
        getattr(torch.cuda, call)(3)
