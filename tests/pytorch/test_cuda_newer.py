"""What PyTorch has brought since 2.12, which its tests of 2.11 do not have."""

from __future__ import annotations

import json
import threading
from typing import Any

import torch
from both import both, stat, take, take_mib
from support import MIB
from test_cuda_mempool import limited
from test_cuda_snapshot import recording

memory = torch.cuda.memory


def reserved(pool: tuple[int, int], key: str) -> int:
    """What one pool has reserved."""
    name = f"{pool[0]}_{pool[1]}"
    return stat(f"reserved_bytes_by_private_pools.{name}.{key}")


@both
def test_reserved_by_private_pools():
    outside = take_mib(40)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        large, small = take_mib(20), take(1024)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = outside[: 20 * MIB] + 1
    assert reserved(pool.id, "large_pool.current") == 20 * MIB
    assert reserved(pool.id, "small_pool.current") == 2 * MIB
    both_kinds = [reserved(pool.id, f"all.{key}") for key in ("current", "peak")]
    assert both_kinds == [22 * MIB, 22 * MIB]
    assert reserved(graph.pool(), "all.current") == 20 * MIB
    del large, small
    assert reserved(pool.id, "all.current") == 22 * MIB  # it keeps what is free
    torch.cuda.reset_accumulated_memory_stats()
    assert reserved(pool.id, "all.allocated") == 0
    assert reserved(pool.id, "all.peak") == 22 * MIB
    pool_id = pool.id
    del pool, inside, graph
    torch.cuda.empty_cache()
    assert reserved(pool_id, "all.current") == 0


@both
def test_oom_rejections():
    """Of no block it is said in advance that it will not fit."""
    with limited(40):
        for _ in range(2):
            try:
                take_mib(80)
            except torch.OutOfMemoryError:
                continue
            raise AssertionError("there was room")
    assert torch.cuda.memory_stats()["num_oom_rejections"] == 0
    assert stat("num_ooms") == 2


@both
def test_allocation_traceback():
    before = take_mib(1)
    with recording("all", context="all", stacks="python"):
        x = take_mib(4)
        address = x.untyped_storage().data_ptr()
        assert "take_mib" in str(memory._allocation_traceback(address))
        assert not memory._allocation_traceback(before.data_ptr())
    del x, before


@both
def test_accelerator_snapshot():
    with recording("all", context="all", stacks="python"):
        x = take_mib(4)
        found = torch.accelerator.memory._snapshot()
    blocks = [block for segment in found["segments"] for block in segment["blocks"]]
    sizes = [b["requested_size"] for b in blocks if b["state"] == "active_allocated"]
    assert 4 * MIB in sizes
    assert "alloc" in [entry["action"] for entry in found["device_traces"][0]]
    del x


@both
def test_annotate_tensor():
    with recording("all", context="all", stacks="python"):
        x = take_mib(4)
        memory._annotate_tensor(x[MIB:], "packed")
        found = memory._snapshot()["device_traces"][0]
        try:
            torch._C._cuda_annotateMemory(12345, "of nothing")
        except RuntimeError as error:
            assert "annotateMemory" in str(error)
        else:
            raise AssertionError("there is no block")
    (entry,) = [entry for entry in found if entry["action"] == "annotate"]
    assert entry["user_metadata"] == "packed"
    assert (entry["addr"], entry["size"]) == (x.data_ptr(), 4 * MIB)
    assert "_annotate_tensor" in str(entry["frames"])
    others = {e["user_metadata"] for e in found if e["action"] != "annotate"}
    assert others == {""}
    memory._annotate_tensor(x, "nobody records")
    del x


@both
def test_metadata_supported():
    assert memory._memory_metadata_supported()


@both
def test_metadata_of_a_dict():
    memory._set_memory_metadata({"step": 7})
    try:
        with recording("all", context=None):
            x = take_mib(4)
            found = memory._snapshot()["device_traces"][0]
        assert {json.loads(e["user_metadata"])["step"] for e in found} == {7}
    finally:
        memory._set_memory_metadata("")
    del x


@both
def test_metadata_of_threads():
    """Each thread has its own."""
    noted: list[Any] = []

    def work() -> None:
        noted.append(torch._C._cuda_getMemoryMetadata())
        noted.append(take(5000))

    torch._C._cuda_setMemoryMetadata("of the first")
    try:
        with recording("all", context=None):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            x = take(7000)
            found = memory._snapshot()["device_traces"][0]
        told = {e["size"]: e["user_metadata"] for e in found if e["action"] == "alloc"}
        assert noted[0] == ""
        assert told == {5000: "", 7000: "of the first"}
    finally:
        torch._C._cuda_setMemoryMetadata("")
    del x
    noted.clear()
