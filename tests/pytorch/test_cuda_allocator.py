"""What a user asks of the allocator and its figures: after PyTorch's test_cuda.py."""

from __future__ import annotations

import contextlib
import gc
import os
import random
from collections.abc import Iterator

import pytest
import torch
from both import CARD, both, differs, stat, take, take_mib, ways
from support import GIB, KIB, MIB, run

set_allocator = torch._C._accelerator_setAllocatorSettings


@contextlib.contextmanager
def limited(size_bytes: int) -> Iterator[None]:
    """The process may take so much more than it has."""
    before = torch.cuda.get_per_process_memory_fraction()
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    allowed = size_bytes + torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction(allowed / total)
    try:
        yield
    finally:
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(before)


@contextlib.contextmanager
def settings(*texts: str) -> Iterator[None]:
    """PyTorch's settings while the program runs; none afterwards."""
    for text in texts:
        set_allocator(text)
    try:
        yield
    finally:
        set_allocator("expandable_segments:False")


@both
def test_memory_allocation():
    before = torch.cuda.memory_allocated()
    block = torch.cuda.caching_allocator_alloc(1)
    assert torch.cuda.memory_allocated() > before
    torch.cuda.caching_allocator_delete(block)
    assert torch.cuda.memory_allocated() == before


@both
def test_memory_stats():
    accelerator = torch.accelerator
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    most = accelerator.max_memory_allocated(), accelerator.max_memory_reserved()
    assert (accelerator.memory_allocated(), accelerator.memory_reserved()) == most

    def active() -> tuple[int, int]:
        stats = accelerator.memory_stats()
        return stats["active_bytes.all.current"], stats["active_bytes.all.freed"]

    before, _ = active()
    block = take(KIB)
    assert active() == (before + KIB, 0)
    del block
    accelerator.empty_cache()
    assert active() == (before, KIB)
    accelerator.reset_peak_memory_stats()
    now = accelerator.max_memory_allocated(), accelerator.max_memory_reserved()
    assert now == most


@both
def test_out_of_memory():
    kept = torch.zeros(1024, device="cuda")
    message = r"Tried to allocate 800000000.00 GiB. GPU 0 has a total capacity of"
    with pytest.raises(RuntimeError, match=message):
        take(GIB * 800_000_000)
    with pytest.raises(RuntimeError, match="Tried to allocate more than 1EB memory"):
        take(GIB * 8_000_000_000)
    kept.fill_(1)
    assert bool((kept == 1).all())


@both
def test_out_of_memory_retry():
    torch.cuda.empty_cache()
    size = torch.cuda.get_device_properties(0).total_memory // 2 + MIB
    first = take(size)
    with pytest.raises(RuntimeError, match="Tried to allocate"):
        take(size)
    del first
    take(size)


@both
def test_set_per_process_memory_fraction():
    limit = torch.cuda.set_per_process_memory_fraction
    before = torch.cuda.get_per_process_memory_fraction(0)
    with pytest.raises(TypeError, match="Invalid type"):
        limit(1)
    for wrong in (-0.1, 2.0):
        with pytest.raises(ValueError, match="Invalid fraction value"):
            limit(wrong)
    kept = torch.zeros(1024, device="cuda")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(0)
    total = torch.cuda.get_device_properties(0).total_memory
    limit(0.5, 0)
    try:
        take(int(total * 0.499) - torch.cuda.max_memory_reserved())
        torch.cuda.empty_cache()
        with pytest.raises(RuntimeError, match="out of memory"):
            take(int(total * 0.5))
        kept.fill_(1)
        assert bool((kept == 1).all())
    finally:
        limit(before, 0)


@both
def test_get_per_process_memory_fraction():
    before = torch.cuda.get_per_process_memory_fraction()
    for fraction in (1.0, 0.0, *torch.rand(3).tolist()):
        torch.cuda.set_per_process_memory_fraction(fraction)
        assert torch.cuda.get_per_process_memory_fraction() == fraction
    torch.cuda.set_per_process_memory_fraction(before)


@both
def test_mem_get_info():
    for device in (0, "cuda", "cuda:0", torch.device("cuda:0")):
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info(device)
        block = torch.ones(8 << 20, device=device)
        free_after, total_after = torch.cuda.mem_get_info(device)
        assert free_after < free
        assert total_after == total
        del block


@both
def test_cublas_workspace_explicit_allocation():
    a = torch.randn(7, 7, device="cuda")
    hopper = torch.cuda.get_device_capability() == (9, 0)
    usual = 32 * MIB if hopper else 2 * 4 * MIB + 128 * KIB
    try:
        for config, size in (
            ("", usual),
            ("-1", usual),
            (":128:8:64:16:32:32", 3 * MIB),
        ):
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = config
            torch._C._cuda_clearCublasWorkspaces()
            before = stat("active_bytes.all.allocated")
            torch.matmul(a, a)
            taken = stat("active_bytes.all.allocated") - before
            assert abs(taken - size) < 512 * KIB, config
    finally:
        del os.environ["CUBLAS_WORKSPACE_CONFIG"]
        torch._C._cuda_clearCublasWorkspaces()


@both
def test_matmul_memory_use():
    """A batch that is one matrix, expanded, takes no memory for copies of it."""

    def most() -> int:
        torch.cuda.synchronize()
        found = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return found

    a, b = torch.rand(1, 32, 32, device="cuda"), torch.rand(24, 32, 1, device="cuda")
    torch.matmul(a, b)
    most()
    torch.matmul(a, b)
    plain = most()
    a = a.expand(24, 32, 32)
    torch.matmul(a, b)
    expanded = most()
    torch.bmm(a, b)
    assert plain == expanded == most()


@both
def test_max_split_expandable():
    with limited(120 * MIB):
        kept = []
        for expandable in (False, True, False):
            set_allocator(f"expandable_segments:{expandable},max_split_size_mb:40")
            kept.append(take_mib(40))
        with pytest.raises(torch.OutOfMemoryError):
            take_mib(40)
        kept.clear()
        take_mib(120)
    set_allocator("expandable_segments:False")


@both
def test_garbage_collect_expandable():
    with limited(120 * MIB):
        kept = []
        for expandable in (False, True):
            set_allocator(
                f"expandable_segments:{expandable},garbage_collection_threshold:0.5"
            )
            kept.append(take_mib(40))
        kept.clear()
        take_mib(80)
    set_allocator("expandable_segments:False")


def rounded(size: int, divisions: int) -> int:
    """The next size of so many between two powers of two."""
    upper = 1 << (size - 1).bit_length()
    step = upper // 2 // divisions
    return size if size == upper else -(-size // step) * step


@both
def test_allocator_settings():
    """How settings round up; and the figures with none of them."""
    size, large = 84 * MIB, 400 * MIB

    def taken(size_bytes: int, *texts: str) -> tuple[int, int]:
        torch.cuda.empty_cache()
        with settings(*texts):
            active = stat("active_bytes.all.allocated")
            requested = stat("requested_bytes.all.allocated")
            take(size_bytes)
            return (
                stat("active_bytes.all.allocated") - active,
                stat("requested_bytes.all.allocated") - requested,
            )

    by_size = "roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]"
    assert taken(size, "") == (size, size)
    assert taken(size, "roundup_power2_divisions:4") == (rounded(size, 4), size)
    assert taken(size, "garbage_collection_threshold:0.5,max_split_size_mb:40") == (
        size,
        size,
    )
    assert taken(size, by_size) == (rounded(size, 8), size)
    assert taken(large, by_size) == (rounded(large, 2), large)
    assert taken(size, "release_lock_on_cudamalloc:True") == (size, size)


@pytest.mark.parametrize(
    "wrong",
    [
        "foo:1,bar:2",
        "garbage_collection_threshold:1.2",
        "max_split_size_mb:2",
        "release_lock_on_cudamalloc:none",
        "pinned_use_cuda_host_register:none",
        "pinned_num_register_threads:none",
        "pinned_num_register_threads:1024",
    ],
)
@both
def test_allocator_settings_refused(wrong):
    """The second part of test_allocator_settings."""
    with pytest.raises(ValueError):
        torch._C._accelerator_setAllocatorSettings(wrong)


@ways()
def test_allocator_backend(conf):
    code = "import torch; torch.cuda.init(); print(torch.cuda.get_allocator_backend())"
    wanted = "max_split_size_mb:20,backend:cudaMallocAsync"
    done = run(code, card=CARD, conf=conf, PYTORCH_ALLOC_CONF=wanted)
    ours = differs("test_allocator_backend", conf)
    found = "oomph" if ours else "cudaMallocAsync"
    assert (done.code, done.out.strip()) == (0, found), done.said


@pytest.mark.long
@pytest.mark.parametrize("fraction", ["0.5", "1.1"])
@ways()
def test_allocator_memory_fraction_setting(conf, fraction):
    code = """
        import torch
        device = torch._C._cuda_getDevice()
        print(torch.cuda.memory.get_per_process_memory_fraction(device))
    """
    wanted = f"per_process_memory_fraction:{fraction}"
    done = run(code, card=CARD, conf=conf, PYTORCH_ALLOC_CONF=wanted)
    if 0 <= float(fraction) <= 1:
        assert (done.code, done.out) == (0, f"{fraction}\n"), done.said
    else:
        assert done.code != 0
        assert "per_process_memory_fraction is invalid" in done.said


@both
def test_cachingAllocator_raw_alloc():
    """Without caching, what is asked for counts nowhere."""
    stream = torch._C._cuda_getCurrentRawStream(0)

    def requested() -> int:
        before = stat("requested_bytes.all.allocated")
        block = torch._C._cuda_cudaCachingAllocator_raw_alloc(MIB, stream)
        torch._C._cuda_cudaCachingAllocator_raw_delete(block)
        return stat("requested_bytes.all.allocated") - before

    torch.cuda.empty_cache()
    torch.cuda.caching_allocator_enable(False)
    try:
        assert requested() == 0
    finally:
        torch.cuda.caching_allocator_enable(True)
    assert requested() == MIB


@pytest.mark.parametrize("max_split", [False, True])
@both
def test_raises_oom(max_split):
    with (
        settings("max_split_size_mb:1024" if max_split else ""),
        pytest.raises(torch.cuda.OutOfMemoryError),
    ):
        take(1024 * GIB)


@both
def test_notifies_oom():
    heard = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *about: heard.append(about))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        take(1024 * GIB)
    device, size, total, free = heard[0]
    assert (device, size) == (0, 1024 * GIB)
    assert free <= total == torch.cuda.get_device_properties(0).total_memory
    heard.clear()


@both
def test_allocator_fuzz():
    rng = random.Random(123)
    blocks: list[tuple[int, torch.Tensor]] = []
    total = 0
    for number in range(1500):
        choice = rng.choices("aft", weights=[1, 1 if blocks else 0, 0.1])[0]
        while total >= 100 * MIB or (choice == "f" and blocks):
            value, tensor = blocks.pop(rng.randrange(len(blocks)))
            assert bool((tensor == value).all()), f"seed 123, step {number}"
            total -= tensor.nbytes
            choice = ""
        if choice == "a":
            count = rng.randrange(MIB // 16, 10 * MIB // 16)
            full = torch.full((count,), number, dtype=torch.int32, device="cuda")
            blocks.append((number, full))
            total += full.nbytes
        elif choice == "t":
            torch.cuda.empty_cache()
    blocks.clear()


@both
def test_autocast_cache_leak():
    """What autocast has converted is not kept a second time."""
    linear, data = torch.nn.Linear(10, 10).cuda(), torch.randn(1, 10, device="cuda")
    with torch.autocast("cuda"), torch.no_grad():
        out = linear(data)
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            out = linear(data)
            assert torch.cuda.memory_allocated() == before
    del out


# ---- PyTorch's own check for leaks looks at the figures and at the driver


def leak_checked(body):
    """The body as PyTorch's tests run it."""
    from torch.testing._internal.common_utils import TestCase

    return TestCase().wrap_with_cuda_memory_check(body)


@both
def test_cuda_memory_leak_detection():
    kept = []
    leak_checked(lambda: None)()
    leak = leak_checked(lambda: kept.append(torch.ones(8 << 20, device="cuda")))
    with pytest.raises(RuntimeError, match=r"CUDA driver API confirmed .+ on device 0"):
        leak()
    kept.clear()


@both
def test_cuda_memory_leak_detection_propagates_errors():
    from torch.testing._internal.common_utils import TestCase

    with (
        pytest.raises(RuntimeError, match=r"size of tensor a \(3\) must match"),
        TestCase().assertLeaksNoCudaTensors(),
    ):
        torch.ones(3, 1, device="cuda").expand(3, 3) + torch.ones(2, device="cuda")
