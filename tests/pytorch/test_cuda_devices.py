"""Two devices, and figures by device: after PyTorch's test_cuda_multigpu.py."""

from __future__ import annotations

import gc
import io
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from both import TWO, both, stat, take_mib

on_two = both(on=TWO)


# ---- figures


def check_consistent() -> None:
    """The figures of each device are the sums over its snapshot."""
    expected: dict[int, Counter[str]] = {0: Counter(), 1: Counter()}
    for segment in torch.cuda.memory_snapshot():
        own = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
        active = [b for b in segment["blocks"] if b["state"] != "inactive"]
        requested = sum(block["requested_size"] for block in active)
        assert requested == segment["requested_size"]
        for pool in ("all", f"{segment['segment_type']}_pool"):
            figures = {
                "allocated_bytes": segment["allocated_size"],
                "reserved_bytes": segment["total_size"],
                "active_bytes": segment["active_size"],
                "requested_bytes": requested,
                "allocation": len(own),
                "active": len(active),
            }
            if not segment["is_expandable"]:
                figures["segment"] = 1
                split = [b for b in segment["blocks"] if b["state"] == "inactive"]
                split = split if len(segment["blocks"]) > 1 else []
                figures["inactive_split"] = len(split)
                figures["inactive_split_bytes"] = sum(b["size"] for b in split)
            for key, value in figures.items():
                expected[segment["device"]][f"{key}.{pool}.current"] += value
    for device in range(torch.cuda.device_count()):
        found = {key: stat(key, device) for key in expected[device]}
        assert found == dict(expected[device])


class Watch:
    """The figures of a device as they must move."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.last = self.figures()

    def figures(self) -> tuple[int, int, int, int]:
        memory = torch.cuda
        return (
            memory.memory_allocated(self.device),
            memory.max_memory_allocated(self.device),
            memory.memory_reserved(self.device),
            memory.max_memory_reserved(self.device),
        )

    def check(self, change: int, empty: bool = False, reset: bool = False) -> None:
        """They rose, fell or stayed; then the cache is emptied, or the peaks reset."""
        allocated, most, reserved, most_reserved = self.figures()
        assert (allocated > self.last[0]) - (allocated < self.last[0]) == change
        assert max(allocated, self.last[1]) <= most
        assert max(reserved, self.last[3]) <= most_reserved
        if empty:
            self.check_empty_cache(reserved, most_reserved)
        if reset:
            torch.cuda.reset_peak_memory_stats(self.device)
            now = self.figures()
            assert now == (now[0], now[0], now[2], now[2])
        self.last = self.figures()

    def check_empty_cache(self, reserved: int, most_reserved: int) -> None:
        keys = ("num_sync_all_streams", "num_device_alloc", "num_device_free")
        before = [stat(key, self.device) for key in keys]
        torch.cuda.empty_cache()
        after = [stat(key, self.device) for key in keys]
        assert after[0] == before[0] + 1
        assert after[1] >= before[1] and after[2] >= before[2]
        now = self.figures()
        assert now[2] <= reserved and now[3] == most_reserved


def story(device: int) -> Iterator[None]:
    """Blocks of many sizes come and go; each step yields."""
    torch.empty(1, device=f"cuda:{device}")  # oomph counts from the first use on
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    watch, rng = Watch(device), random.Random(device)

    def alloc(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, device=f"cuda:{device}")

    def have(tensor: torch.Tensor, **then: bool) -> None:
        kept.append(tensor)
        watch.check(1 if tensor.numel() else 0, **then)

    kept: list[torch.Tensor] = []
    before = torch.cuda.memory_allocated(device)
    watch.check(0, reset=True)
    watch.check(0, empty=True)
    yield
    for shape in ((1,), (10, 20), (200, 300, 200)):
        have(alloc(*shape))
        yield
    first, kept = kept, []
    middle = torch.cuda.memory_allocated(device)
    for i in range(1, 18):
        have(alloc(i, i * 4))
        yield
    for i in range(5, 12):
        have(alloc(i, i * 7, i * 9, i * 11), reset=i % 2 == 0)
        yield
    have(alloc(0, 0, 0))
    rng.shuffle(kept)
    watch.check(0, reset=True)
    while kept:
        watch.check(-1 if kept.pop().numel() else 0)
        yield
    for i in range(2, 20):
        have(alloc(i, i * 3, i * 8))
        yield
    kept.clear()
    watch.check(-1, reset=True)
    assert torch.cuda.memory_allocated(device) == middle
    yield
    first.clear()
    watch.check(-1, reset=True)
    assert torch.cuda.memory_allocated(device) == before
    watch.check(0, empty=True)
    watch.check(0, reset=True)


@both(on=TWO)
def test_memory_stats():
    gc.collect()
    torch.cuda.empty_cache()
    for _ in story(0):
        check_consistent()


@both(on=TWO)
def test_memory_stats_multigpu():
    rng = random.Random(11)
    stories = {0: story(0), 1: story(1)}
    while stories:
        device = rng.choice(list(stories))
        if next(stories[device], False) is False:
            del stories[device]
    check_consistent()


@on_two
def test_cuda_device_memory_allocated():
    before = [torch.cuda.memory_allocated(device) for device in range(2)]
    _x = torch.ones(10, device="cuda:0")
    assert torch.cuda.memory_allocated(0) > before[0]
    assert torch.cuda.memory_allocated(torch.cuda.device(1)) == before[1]


@on_two
def test_mem_get_info_of_both():
    """The second part of test_mem_get_info."""
    torch.cuda.empty_cache()
    for device in (1, "cuda:1", torch.device("cuda:1")):
        free = [torch.cuda.mem_get_info(which)[0] for which in (0, device)]
        block = take_mib(32, 1)
        now = [torch.cuda.mem_get_info(which)[0] for which in (0, device)]
        assert now == [free[0], free[1] - block.nbytes]
        del block
        torch.cuda.empty_cache()


@on_two
def test_cuda_memory_leak_detection_multi_gpu():
    """The second part of test_cuda_memory_leak_detection."""
    from torch.testing._internal.common_utils import TestCase

    kept: list[torch.Tensor] = []
    leak = TestCase().wrap_with_cuda_memory_check(lambda: kept.append(take_mib(32, 1)))
    with pytest.raises(RuntimeError, match=r"CUDA driver API confirmed .+ on device 1"):
        leak()
    kept.clear()


# ---- which device is meant


def device_of(tensor: torch.Tensor) -> int:
    return tensor.get_device()


@on_two
def test_cuda_synchronize():
    for device in (None, "cuda", "cuda:0", 0, torch.device("cuda:0"), "cuda:1", 1):
        torch.cuda.synchronize(device)
    for wrong in ("cpu", torch.device("cpu")):
        with pytest.raises(ValueError, match="Expected a cuda device, but"):
            torch.cuda.synchronize(wrong)


@on_two
def test_autogpu():
    x, y = (torch.ones(5, 5).cuda() for _ in range(2))
    with torch.cuda.device(1):
        z = torch.ones(5, 5).cuda()
        assert [device_of(t) for t in (x, y, z, x + y, y.cuda())] == [0, 0, 1, 0, 1]
    assert device_of(z.cuda()) == 0


@on_two
def test_new():
    x = torch.ones(3, 3).cuda()
    for device in (0, 1):
        with torch.cuda.device(device):
            assert device_of(x.new([0, 1, 2])) == 0
            assert device_of(x.new([0, 1, 2], device=1)) == 1


@on_two
def test_copy_device():
    for x in (torch.randn(5, 5).cuda(), torch.randn(5, 5)):
        with torch.cuda.device(1):
            y = x.cuda()
            z = y.cuda(0)
            assert (device_of(y), device_of(z)) == (1, 0)
            assert y.cuda() is y and z.cuda(0) is z
            assert torch.equal(z.cpu(), x.cpu())


@on_two
def test_cat_autogpu():
    x = torch.ones(4, 4).cuda(1)
    assert device_of(torch.cat([x, x], 0)) == 1


@on_two
def test_tensor_device():
    for device in (0, 1):
        with torch.cuda.device(device):
            for wanted in (0, 1, None):
                found = device_of(torch.cuda.FloatTensor(1, device=wanted))
                assert found == (device if wanted is None else wanted)


@on_two
def test_cuda_set_device():
    x = torch.ones(5, 5)
    with torch.cuda.device(1):
        assert device_of(x.cuda()) == 1
        torch.cuda.set_device(0)
        assert device_of(x.cuda()) == 0
        with torch.cuda.device(1):
            assert device_of(x.cuda()) == 1
        assert device_of(x.cuda()) == 0
        torch.cuda.set_device(1)
    assert device_of(x.cuda()) == 0


@on_two
def test_load_nonexistent_device():
    file = io.BytesIO()
    torch.save(torch.ones(2, device="cuda"), file)
    changed = io.BytesIO(file.getvalue().replace(b"cuda:0", b"cuda:9"))
    with pytest.raises(RuntimeError, match="deserialize object on CUDA device 9"):
        torch.load(changed)


@pytest.mark.parametrize("by_table", [False, True])
@on_two
def test_multigpu_serialization_remap(by_table):
    """Also test_multigpu_serialization_remap_dict."""
    saved = [torch.randn(4, 4).cuda(device) for device in (0, 1)]

    def remap(storage: Any, location: str) -> Any:
        return storage.cuda(0) if location == "cuda:1" else None

    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    location = {"cuda:1": "cuda:0"} if by_table else remap
    loaded = torch.load(file, map_location=location)
    for found, wanted in zip(loaded, saved, strict=True):
        assert device_of(found) == 0
        assert torch.equal(found.cpu(), wanted.cpu())


@on_two
def test_multigpu_storage_clone():
    x = torch.ones(4, 4, device="cuda:1").storage()
    assert x.clone().get_device() == 1
    for kind in ("byte", "char", "short", "int", "long", "half", "double"):
        assert getattr(x, kind)().get_device() == 1


@on_two
def test_multi_device_context_manager():
    with torch.accelerator.device_index(1):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0


@on_two
def test_multi_device_stream_context_manager():
    before = [torch.cuda.current_stream(device) for device in (0, 1)]
    with torch.cuda.Stream(1) as stream:
        assert torch.cuda.current_device() == 1
        assert torch.cuda.current_stream() == stream
        assert torch.cuda.current_stream(0) == before[0]
    assert torch.cuda.current_device() == 0
    assert [torch.cuda.current_stream(device) for device in (0, 1)] == before
