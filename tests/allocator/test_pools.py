"""MemPools, with memory of oomph's and with an allocator of their own."""

import subprocess
from pathlib import Path

import pytest
import torch
from support import GIB, MIB, Simulated

simulated = Simulated("1GiB,context=0", "reserve:0,offload:off")
native = Simulated("1GiB,context=0", None)
spilling = Simulated("1GiB,context=0", "reserve:0,host_limit:1GiB")


def take(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def pool_bytes(pool: torch.cuda.MemPool) -> int:
    return sum(segment["total_size"] for segment in pool.snapshot())


@simulated
def test_a_pool_keeps_its_blocks_apart():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = take(4 * MIB)
    b = take(4 * MIB)
    (segment,) = pool.snapshot()
    assert [block["address"] for block in segment["blocks"]] == [a.data_ptr()]
    assert segment["segment_pool_id"] == pool.id
    del a, b


@simulated
def test_a_block_freed_outside_serves_the_pool_again():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = take(4 * MIB)
    address = a.data_ptr()
    del a
    assert take(4 * MIB).data_ptr() != address
    with torch.cuda.use_mem_pool(pool):
        assert take(4 * MIB).data_ptr() == address


@simulated
def test_a_pool_is_for_the_thread_that_uses_it():
    import threading

    pool = torch.cuda.MemPool()
    found = []
    with torch.cuda.use_mem_pool(pool):
        thread = threading.Thread(target=lambda: found.append(take(4 * MIB)))
        thread.start()
        thread.join()
    assert pool.snapshot() == []
    found.clear()


@simulated
def test_the_innermost_pool_wins():
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(outer):
        with torch.cuda.use_mem_pool(inner):
            take(4 * MIB)
        assert pool_bytes(inner) == 4 * MIB
        assert pool_bytes(outer) == 0
        take(8 * MIB)
        assert pool_bytes(outer) == 8 * MIB


@simulated
def test_the_memory_of_a_pool_in_use_survives_empty_cache():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        take(4 * MIB)
    torch.cuda.empty_cache()
    assert pool_bytes(pool) == 4 * MIB


@simulated
def test_the_memory_of_a_pool_in_use_serves_nobody_else():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        take(512 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        take(GIB)


@simulated
def test_the_memory_of_a_pool_may_serve_others_before_an_error():
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        take(512 * MIB)
    take(GIB)


@simulated
def test_a_pool_that_dies_gives_its_memory_back():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        take(512 * MIB)
    del pool
    assert torch.cuda.memory_reserved() == 0
    take(GIB)


@simulated
def test_a_block_outlives_its_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = take(4 * MIB)
    del pool
    a.zero_()
    assert torch.cuda.memory_allocated() == 4 * MIB
    del a
    assert torch.cuda.memory_allocated() == 0


@simulated
def test_use_counts_are_those_of_the_native_allocator():
    pool = torch.cuda.MemPool()
    assert pool.use_count() == 1
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == 2
    assert pool.use_count() == 1


@simulated
def test_a_pool_without_splitting_gives_whole_blocks():
    pool = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        a = take(8 * MIB)
        address = a.data_ptr()
        del a
        b, c = take(4 * MIB), take(4 * MIB)
    assert b.data_ptr() == address
    assert not address <= c.data_ptr() < address + 8 * MIB
    del b, c


@spilling
def test_blocks_of_a_pool_never_fall_back_to_the_host():
    kept = take(GIB)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool), pytest.raises(torch.OutOfMemoryError):
        take(4 * MIB)
    del kept


@simulated
def test_an_error_inside_leaves_the_pool_as_it_was():
    pool = torch.cuda.MemPool()
    with pytest.raises(torch.OutOfMemoryError), torch.cuda.use_mem_pool(pool):
        take(2 * GIB)
    assert take(4 * MIB) is not None
    assert pool_bytes(pool) == 0


# ---- An allocator of the pool's own

INNER = """
#include <stddef.h>
#include <stdio.h>
typedef void *stream_t;
extern int cuMemAlloc_v2(unsigned long long *, size_t);
extern int cuMemFree_v2(unsigned long long);
int taken, given, refuse;
size_t last_size;
void *inner_alloc(size_t size, int device, stream_t stream)
{
    unsigned long long address = 0;
    if (refuse || cuMemAlloc_v2(&address, size) != 0)
        return NULL;
    taken++;
    last_size = size;
    return (void *)address;
}
void inner_free(void *address, size_t size, int device, stream_t stream)
{
    given++;
    cuMemFree_v2((unsigned long long)address);
}
"""


@pytest.fixture(scope="module")
def inner_library(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("inner")
    (folder / "inner.c").write_text(INNER)
    library = folder / "libinner.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, folder / "inner.c"], check=True
    )
    return library


class Inner:
    """A pool with an allocator from a library, and what that has counted."""

    def __init__(self, library: str) -> None:
        import ctypes

        self.allocator = torch.cuda.memory.CUDAPluggableAllocator(
            library, "inner_alloc", "inner_free"
        )
        self.library = ctypes.CDLL(library)
        for name in ("taken", "given", "refuse"):
            self.variable(name).value = 0
        self.pool = torch.cuda.MemPool(self.allocator.allocator())

    def variable(self, name: str):
        import ctypes

        return ctypes.c_int.in_dll(self.library, name)

    def count(self, name: str) -> int:
        return self.variable(name).value


@simulated
def test_a_pool_takes_its_memory_from_its_own_allocator(inner_library):
    import oomph

    inner = Inner(inner_library)
    with torch.cuda.use_mem_pool(inner.pool):
        a = take(5 * MIB)
    assert inner.count("taken") == 1
    assert oomph.stats()["foreign_bytes"] == pool_bytes(inner.pool) == 6 * MIB
    a.zero_()
    del a, inner


@simulated
def test_such_a_pool_serves_further_blocks_without_asking(inner_library):
    inner = Inner(inner_library)
    with torch.cuda.use_mem_pool(inner.pool):
        take(8 * MIB)
        a, b = take(3 * MIB), take(5 * MIB)
    assert inner.count("taken") == 1
    del a, b, inner


@simulated
def test_such_a_pool_gives_the_memory_back_to_its_allocator(inner_library):
    inner = Inner(inner_library)
    with torch.cuda.use_mem_pool(inner.pool):
        a = take(8 * MIB)
    del inner.pool
    assert inner.count("given") == 0
    del a
    torch.cuda.empty_cache()
    assert inner.count("given") == 1


@simulated
def test_an_allocator_that_has_nothing_is_out_of_memory(inner_library):
    inner = Inner(inner_library)
    inner.variable("refuse").value = 1
    with torch.cuda.use_mem_pool(inner.pool), pytest.raises(torch.OutOfMemoryError):
        take(8 * MIB)
    del inner


@simulated
def test_a_block_of_such_a_pool_can_be_used_on_other_streams(inner_library):
    inner = Inner(inner_library)
    side = torch.cuda.Stream()
    with torch.cuda.use_mem_pool(inner.pool):
        a = take(8 * MIB)
    a.record_stream(side)
    with torch.cuda.stream(side):
        a.zero_()
    del a
    del inner.pool
    torch.cuda.empty_cache()
    assert inner.count("given") == 1


# ---- The same with the native allocator


def watched_segments(library: str) -> list:
    """What the trace says of a pool's memory, and what its snapshot does."""
    inner = Inner(library)
    torch.cuda.memory._record_memory_history(context="all", stacks="python")
    with torch.cuda.use_mem_pool(inner.pool):
        a = take(30 * MIB)
    (segment,) = inner.pool.snapshot()
    found = [segment["total_size"], segment["is_expandable"], segment["segment_type"]]
    address = a.data_ptr()
    del a, inner.pool
    for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
        if entry["action"].startswith("segment"):
            assert entry["addr"] == address
            names = [frame["name"] for frame in entry["frames"]]
            found.append([entry["action"], entry["size"], names[0]])
    torch.cuda.memory._record_memory_history(enabled=None)
    return found


def limited_memory(library: str) -> list:
    """Two pools fill a limit; one of them may be used before an error."""
    found = []

    def outcome(size_mib: int) -> str:
        try:
            kept.append(take(size_mib * MIB))
        except torch.OutOfMemoryError:
            return "error"
        return "the pool's" if kept[-1].data_ptr() == address else "elsewhere"

    torch.cuda.set_per_process_memory_fraction(80 / 1024)
    inner = Inner(library)
    allocator = inner.allocator.allocator()
    pool = torch.cuda.MemPool(allocator, use_on_oom=True)
    other = torch.cuda.MemPool(allocator)
    kept: list = []
    with torch.cuda.use_mem_pool(pool):
        lent = take(40 * MIB)
    address = lent.data_ptr()
    with torch.cuda.use_mem_pool(other):
        held = take(40 * MIB)
    found.append(outcome(40))
    del lent, held
    found += [outcome(30), outcome(30)]
    kept.clear()
    with torch.cuda.use_mem_pool(other):
        found.append(outcome(30))
    kept.clear()
    found.append(torch.cuda.memory_reserved() // MIB)
    del pool, other
    torch.cuda.empty_cache()
    found.append(torch.cuda.memory_reserved())
    torch.cuda.set_per_process_memory_fraction(1.0)
    return found


def test_segments_of_such_a_pool_are_reported_as_natively(inner_library):
    wanted = [30 * MIB, False, "large"]
    wanted += [["segment_alloc", 30 * MIB, "take"]]
    found = native.call(__name__, "watched_segments", str(inner_library))
    assert found[:4] == wanted and found[4][:2] == ["segment_free", 30 * MIB]
    assert simulated.call(__name__, "watched_segments", str(inner_library)) == found


def test_such_a_pool_may_be_used_before_an_error_if_it_says_so(inner_library):
    found = native.call(__name__, "limited_memory", str(inner_library))
    assert found == ["error", "the pool's", "error", "elsewhere", 80, 0]
    assert simulated.call(__name__, "limited_memory", str(inner_library)) == found


@simulated
def test_free_pages_make_way_for_the_allocator_of_a_pool(inner_library):
    take(900 * MIB)
    inner = Inner(inner_library)
    with torch.cuda.use_mem_pool(inner.pool):
        a = take(500 * MIB)
        a.zero_()
    del a, inner


@simulated
def test_the_error_says_that_it_was_the_pools_allocator(inner_library):
    inner = Inner(inner_library)
    inner.variable("refuse").value = 1
    with (
        torch.cuda.use_mem_pool(inner.pool),
        pytest.raises(torch.OutOfMemoryError) as error,
    ):
        take(8 * MIB)
    text = str(error.value)
    assert "the MemPool's own allocator gave no memory for 8.00 MiB" in text
    assert "offload" not in text and "Fragmentation" not in text
    del inner


@simulated
def test_a_pool_with_the_allocator_in_use_is_a_pool():
    pool = torch.cuda.MemPool(torch._C._cuda_getAllocator())
    with torch.cuda.use_mem_pool(pool):
        a = take(5 * MIB)
    assert pool_bytes(pool) == 6 * MIB
    assert [b["address"] for s in pool.snapshot() for b in s["blocks"][:1]] == [
        a.data_ptr()
    ]
    del a
