"""MemPools: after PyTorch's TestMemPool."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from both import both, differs, native, pool_segments, stat, take_mib
from support import MIB

use = torch.cuda.use_mem_pool
MemPool = torch.cuda.MemPool
set_allocator = torch._C._accelerator_setAllocatorSettings

INNER = """
#include <stddef.h>
extern int cuMemAlloc_v2(unsigned long long *, size_t);
extern int cuMemFree_v2(unsigned long long);
int taken, given;
void *take(size_t size, int device, void *stream)
{
    unsigned long long address = 0;
    if (cuMemAlloc_v2(&address, size) != 0)
        return NULL;
    taken++;
    return (void *)address;
}
void give(void *address, size_t size, int device, void *stream)
{
    given++;
    cuMemFree_v2((unsigned long long)address);
}
"""


@functools.cache
def library() -> Path:
    """A library with an allocator for MemPools, which counts."""
    folder = Path(tempfile.mkdtemp())
    source, built = folder / "inner.c", folder / "libinner.so"
    source.write_text(INNER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, source], check=True)
    return built


class Inner:
    """That allocator, and what it has counted since."""

    def __init__(self) -> None:
        path = str(library())
        self.allocator: Any = torch.cuda.memory.CUDAPluggableAllocator(
            path, "take", "give"
        )
        self._library = ctypes.CDLL(path)
        self._before = self._counted()

    def _counted(self) -> list[int]:
        names = ("taken", "given")
        return [ctypes.c_int.in_dll(self._library, name).value for name in names]

    def counts(self) -> tuple[int, int]:
        """How often it gave memory, and got it back."""
        now = self._counted()
        return now[0] - self._before[0], now[1] - self._before[1]

    def pool(self, **options: bool) -> torch.cuda.MemPool:
        return MemPool(self.allocator.allocator(), **options)


@contextlib.contextmanager
def limited(mib: int) -> Iterator[None]:
    """The process may take so much more than it has."""
    before = torch.cuda.get_per_process_memory_fraction()
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    allowed = mib * MIB + torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction(allowed / total)
    try:
        yield
    finally:
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(before)


def fails(mib: int) -> bool:
    """Whether there is no memory for a block of this size."""
    try:
        take_mib(mib)
    except torch.OutOfMemoryError:
        return True
    return False


@both
def test_mempool_id():
    first, second = torch.cuda.graph_pool_handle(), MemPool().id
    assert first[0] == second[0] == 0
    assert second[1] > first[1]


@both
def test_mempool_empty_cache():
    torch.cuda.empty_cache()
    before = stat("allocated_bytes.all.current")
    pool = MemPool()
    x = take_mib(4)
    with use(pool):
        y = take_mib(4)
    del y, x, pool
    assert len(torch.cuda.memory._snapshot()["segments"]) > 0  # of the default pool
    assert stat("allocated_bytes.all.current") == before


@both
def test_mempool_empty_cache_inactive():
    inner = Inner()

    def block() -> torch.Tensor:
        with use(inner.pool()):
            return torch.arange(1 << 20, device="cuda")

    x = block()
    assert inner.counts() == (1, 0)
    assert int(x[-1]) == (1 << 20) - 1
    del x
    torch.cuda.empty_cache()
    assert inner.counts() == (1, 1)


@both
def test_mempool_with_allocator():
    inner = Inner()
    pool = inner.pool()
    assert pool.use_count() == 1
    assert inner.counts() == (0, 0)
    with use(pool):
        first = take_mib(1)
        assert pool.use_count() == 2
    assert pool.use_count() == 1
    assert inner.counts() == (1, 0)
    outside = take_mib(1)
    assert inner.counts() == (1, 0)
    with use(pool):
        assert len(pool.snapshot()) == 1
        second = take_mib(1)
        assert len(pool.snapshot()) == 1 and inner.counts() == (1, 0)
        third = take_mib(1)
        assert len(pool.snapshot()) == 2 and inner.counts() == (2, 0)
    addresses = {t.data_ptr() for t in (first, second, third, outside)}
    assert len(addresses) == 4
    del first, second, third
    del pool
    assert inner.counts() == (2, 2)


@both
def test_tensor_delete_after_allocator_delete():
    inner = Inner()
    pool = inner.pool()
    with use(pool):
        data = torch.ones(4, device="cuda")
    assert inner.counts() == (1, 0)
    del pool
    inner.allocator = None
    assert inner.counts() == (1, 0)
    assert data.tolist() == [1] * 4
    del data
    torch.cuda.empty_cache()
    assert inner.counts() == (1, 1)


@both
def test_mempool_limited_memory_with_allocator():
    """A pool's free memory serves others before an error, if it was made so."""
    inner = Inner()
    never, on_oom = inner.pool(), inner.pool(use_on_oom=True)
    with limited(80):
        with use(never):
            a = take_mib(40)
        with use(on_oom):
            b = take_mib(40)
        address = b.data_ptr()
        assert fails(40)
        del a, b
        c = take_mib(30)
        assert c.data_ptr() == address
        assert fails(30)
        del c
        with use(on_oom):
            assert take_mib(20).data_ptr() == address
        del never, on_oom


@both
def test_deleted_mempool_not_used_on_oom():
    inner = Inner()
    with limited(40):
        for _ in range(10):
            pool = inner.pool(use_on_oom=True)
            with use(pool):
                take_mib(40)
            del pool
        pool = inner.pool(use_on_oom=True)
        with use(pool):
            take_mib(40)
        first, second = take_mib(20), take_mib(20)
        places = {block["address"] for s in pool.snapshot() for block in s["blocks"]}
        assert {first.data_ptr(), second.data_ptr()} <= places
        del first, second, pool


@both
def test_mempool_no_split():
    pools = MemPool(), MemPool(no_split=True)
    kept = []
    for _ in range(2):
        for pool in pools:
            with use(pool):
                kept.append(take_mib(4))
    split, whole = (pool.snapshot() for pool in pools)
    assert sum(len(segment["blocks"]) for segment in whole) == 2
    if native():
        assert len(whole) > len(split)
        assert len(whole) < sum(len(segment["blocks"]) for segment in split)
    # What it means: a small block does not take a part of a large one's place.
    address = kept[1].data_ptr()
    kept.clear()
    with use(pools[1]):
        a, b = take_mib(2), take_mib(2)
    places = sorted((a.data_ptr(), b.data_ptr()))
    assert places[0] == address or places[1] - places[0] >= 4 * MIB


@both
def test_mempool_multithread():
    ids = []
    threads = [
        threading.Thread(target=lambda: ids.append(MemPool().id)) for _ in "1234"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 4


@both
def test_mempool_emptycache_multithread():
    """Nothing is given back from a pool that is in use."""

    def work(pool: torch.cuda.MemPool) -> None:
        with use(pool):
            torch.ones(4, device="cuda")
            torch.cuda.empty_cache()

    pools = [MemPool() for _ in range(4)]
    threads = [threading.Thread(target=work, args=(pool,)) for pool in pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(pool.snapshot()) for pool in pools] == [1] * 4


@both
def test_nested_mempool():
    pools = [MemPool() for _ in range(3)]
    kept = []

    def nest(index: int) -> None:
        with use(pools[index]):
            kept.append(take_mib(20))
            if index < 2:
                nest(index + 1)
                kept.append(take_mib(20))

    nest(0)
    sizes = [sum(s["active_size"] for s in pool_segments(pool.id)) for pool in pools]
    assert sizes == [40 * MIB, 40 * MIB, 20 * MIB]
    if native():
        assert [len(pool_segments(pool.id)) for pool in pools] == [2, 2, 1]


@both
def test_mempool_expandable():
    """A pool with an allocator of its own is no place for expandable segments."""
    set_allocator("expandable_segments:True")
    try:
        pool = Inner().pool()
        with use(pool):
            inside = take_mib(1)
        outside = take_mib(1)
        found = torch.cuda.memory.memory_snapshot()
        expandable = {s["segment_pool_id"]: s["is_expandable"] for s in found}
        assert expandable == {pool.id: False, (0, 0): True}
        del inside, outside
    finally:
        torch.cuda.empty_cache()
        set_allocator("expandable_segments:False")


@both
def test_mempool_ctx_multithread():
    """Another thread does not take from the pool, nor what is free in it."""
    torch.cuda.empty_cache()
    assert torch.cuda.memory._snapshot()["segments"] == []
    taken, looked = threading.Event(), threading.Event()
    found: list[dict[str, Any]] = []

    def with_pool() -> None:
        pool = MemPool()
        out = take_mib(1)
        with use(pool):
            take_mib(1)
            taken.set()
            looked.wait(30)
        del out

    def look() -> None:
        taken.wait(30)
        out = take_mib(1)
        found.extend(torch.cuda.memory._snapshot()["segments"])
        looked.set()
        del out

    threads = [threading.Thread(target=work) for work in (with_pool, look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    active: Counter[bool] = Counter()
    for segment in found:
        active[segment["segment_pool_id"] == (0, 0)] += segment["active_size"]
    assert len(found) == 2
    assert active == {True: 2 * MIB, False: 0}


# ---- memory that a captured graph takes again, once its streams have met


@contextlib.contextmanager
def reusing() -> Iterator[None]:
    set_allocator("graph_capture_record_stream_reuse:True")
    try:
        yield
    finally:
        set_allocator("graph_capture_record_stream_reuse:False")


def read_on(stream: torch.cuda.Stream, after: torch.cuda.Stream, x: Any) -> Any:
    """Another stream reads it, and keeps a result of its own."""
    stream.wait_stream(after)
    with torch.cuda.stream(stream):
        result = torch.empty_like(x)
        torch.add(x, 2.0, out=result)
        x.record_stream(stream)
    return result


@both
def test_graph_capture_reclaim_2_streams():
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    torch.cuda.synchronize()
    with reusing(), torch.cuda.stream(first):
        graph.capture_begin()
        sink, data = torch.empty(8, device="cuda"), torch.empty(8, device="cuda")
        address = data.data_ptr()
        _result = read_on(second, first, data)
        del data
        before = torch.empty(8, device="cuda").data_ptr()
        first.wait_stream(second)
        sink.fill_(1.0)
        after = torch.empty(8, device="cuda").data_ptr()
        graph.capture_end()
    assert before != address
    assert (after == address) is not differs("test_graph_capture_reclaim_2_streams")
    torch.cuda.synchronize()


@both
def test_graph_capture_reclaim_4_streams():
    streams = [torch.cuda.Stream() for _ in range(4)]
    first, second, third, fourth = streams
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    torch.cuda.synchronize()
    with reusing(), torch.cuda.stream(first):
        graph.capture_begin()
        data = torch.ones(8, device="cuda")
        address = data.data_ptr()
        sink, other = torch.empty_like(data), torch.empty_like(data)
        _results = [read_on(stream, first, data) for stream in streams[1:]]
        del data
        first.wait_stream(second)
        sink.fill_(1.0)
        third.wait_stream(fourth)
        with torch.cuda.stream(third):
            other.fill_(3.0)
            other.record_stream(third)
        before = torch.empty(8, device="cuda").data_ptr()
        first.wait_stream(third)
        sink.add_(other)
        after = torch.empty(8, device="cuda").data_ptr()
        graph.capture_end()
    assert before != address
    assert (after == address) is not differs("test_graph_capture_reclaim_4_streams")
    torch.cuda.synchronize()
