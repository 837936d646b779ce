"""Those who watch the allocator: the error, observers, the profiler, callbacks."""

import pytest
import torch
from support import GIB, MIB, Simulated

simulated = Simulated("1GiB,context=0", "reserve:0,offload:off")
limited = Simulated("1GiB,context=0", "reserve:0,offload:off,device_limit:512MiB")
spilling = Simulated("1GiB,context=0", "reserve:0,host_limit:64MiB,host_ahead:0")


def take(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


# ---- The error


@simulated
def test_the_error_is_pytorchs_own_with_one_argument():
    with pytest.raises(RuntimeError) as caught:
        take(2 * GIB)
    assert type(caught.value) is torch.OutOfMemoryError is torch.cuda.OutOfMemoryError
    text = str(caught.value)  # whose end is found as it is read
    assert caught.value.args == (text,)


@simulated
def test_the_error_says_what_was_asked_for_and_what_there_is():
    kept = take(768 * MIB)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        take(512 * MIB)
    text = str(caught.value)
    assert text.startswith("CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 ")
    assert "has a total capacity of 1.00 GiB of which 256.00 MiB is free." in text
    assert "768.00 MiB is allocated by PyTorch" in text
    assert "0 bytes is reserved by PyTorch but unallocated" in text
    del kept


@limited
def test_the_error_names_the_limit():
    with pytest.raises(torch.OutOfMemoryError) as caught:
        take(600 * MIB)
    assert "capacity of 512.00 MiB (a limit that oomph was given)" in str(caught.value)


@spilling
def test_the_error_says_how_much_lies_on_the_host():
    kept = [take(GIB), take(48 * MIB)]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        take(32 * MIB)
    assert "48.00 MiB of it is on the host" in str(caught.value)
    del kept


@simulated
def test_the_allocator_goes_on_after_the_error():
    kept = take(768 * MIB)
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError):
            take(512 * MIB)
    more = take(256 * MIB)
    del kept, more


@simulated
def test_the_error_reaches_the_caller_of_backward():
    x = torch.randn(64 * MIB, device="cuda", requires_grad=True)  # 256 MiB
    y = x * 2
    kept = take(512 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        y.sum().backward()
    del kept, x, y


@simulated
def test_a_script_may_catch_the_error_and_try_less():
    size = 8 * GIB
    while True:
        try:
            a = take(size)
            break
        except torch.OutOfMemoryError:
            size //= 2
    assert size == GIB
    del a


# ---- Observers


@simulated
def test_an_observer_hears_of_the_error_before_it_is_raised():
    seen = []

    def observer(device, requested, total, free):
        seen.append((device, requested, total, free))

    torch._C._cuda_attach_out_of_memory_observer(observer)
    kept = take(256 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        take(2 * GIB)
    assert seen == [(0, 2 * GIB, GIB, 768 * MIB)]
    del kept


@simulated
def test_an_observer_may_use_the_allocator():
    def observer(device, requested, total, free):
        take(1000)
        torch.cuda.memory_snapshot()
        torch.cuda.empty_cache()

    torch._C._cuda_attach_out_of_memory_observer(observer)
    with pytest.raises(torch.OutOfMemoryError):
        take(2 * GIB)


@simulated
def test_an_observer_that_fails_does_not_hide_that_something_failed():
    armed = [True]

    def observer(device, requested, total, free):
        if armed.pop():
            raise KeyError("observer")

    torch._C._cuda_attach_out_of_memory_observer(observer)
    try:
        with pytest.raises((torch.OutOfMemoryError, KeyError)):
            take(2 * GIB)
    finally:
        armed[:] = [False] * 1000
    take(1000)


# ---- The profiler


@simulated
def test_the_profiler_sees_allocations_and_frees():
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        a = take(3 * MIB + 100)
        del a
    sizes = [
        event.device_memory_usage
        for event in profile.events()
        if event.name == "[memory]"
    ]
    total = sum(e.self_device_memory_usage for e in profile.key_averages())
    assert total == 0, sizes


@simulated
def test_the_profiler_names_the_operator_that_allocates():
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        a = take(3 * MIB)
    by_name = {e.key: e.self_device_memory_usage for e in profile.key_averages()}
    assert by_name["aten::empty"] == 3 * MIB
    del a


# ---- GPU trace callbacks, as the CUDA sanitizer uses them


@simulated
def test_trace_callbacks_hear_of_each_block():
    import torch.cuda._gpu_trace as gpu_trace

    taken, given = [], []
    gpu_trace.register_callback_for_memory_allocation(taken.append)
    gpu_trace.register_callback_for_memory_deallocation(given.append)
    torch._C._activate_gpu_trace()
    try:
        a = take(4 * MIB)
        address = a.data_ptr()
        del a
    finally:
        gpu_trace.MemoryAllocationCallbacks.callback_list.clear()
        gpu_trace.MemoryDeallocationCallbacks.callback_list.clear()
    assert taken == [address]
    assert given == [address]
