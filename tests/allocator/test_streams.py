"""Streams and threads: who may reuse which block, and when."""

import sys
import threading

import torch
from support import MIB, Simulated

simulated = Simulated("1GiB,context=0", "reserve:0,offload:off")


def take(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


class Held:
    """A stream that is busy until it is released."""

    def __init__(self) -> None:
        from remote import sim

        self.sim = sim
        self.stream = torch.cuda.Stream()
        sim.oomph_sim_hold(self.stream.cuda_stream)
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(1000)

    def release(self) -> None:
        self.sim.oomph_sim_release(self.stream.cuda_stream)
        self.stream.synchronize()


def held_waits() -> int:
    from remote import sim_stats

    return sim_stats().held_waits


@simulated
def test_a_freed_block_is_reused_on_its_stream_at_once():
    held = Held()
    with torch.cuda.stream(held.stream):
        address = take(4 * MIB).data_ptr()
        assert take(4 * MIB).data_ptr() == address
    held.release()


@simulated
def test_a_freed_block_is_not_reused_on_another_stream():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        address = take(4 * MIB).data_ptr()
    assert take(4 * MIB).data_ptr() != address


@simulated
def test_every_stream_has_blocks_of_its_own():
    streams = [torch.cuda.Stream() for _ in range(8)]
    streams += [torch.cuda.Stream(priority=-1), torch.cuda.default_stream()]
    addresses = []
    for stream in streams:
        with torch.cuda.stream(stream):
            addresses.append(take(4 * MIB).data_ptr())
    assert len(set(addresses)) == len(streams)


@simulated
def test_streams_from_elsewhere_work():
    import ctypes

    from remote import sim

    handle = ctypes.c_void_p()
    assert sim.cuStreamCreate(ctypes.byref(handle), 1) == 0
    with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
        address = take(4 * MIB).data_ptr()
        assert take(4 * MIB).data_ptr() == address
    assert take(4 * MIB).data_ptr() != address
    assert sim.cuStreamDestroy_v2(handle) == 0


@simulated
def test_a_stream_that_vanished_does_not_hold_its_pages():
    import ctypes

    from remote import sim

    for _ in range(3):
        handle = ctypes.c_void_p()
        assert sim.cuStreamCreate(ctypes.byref(handle), 1) == 0
        with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
            take(600 * MIB)
        assert sim.cuStreamDestroy_v2(handle) == 0
    take(1024 * MIB)


@simulated
def test_streams_that_vanished_leave_no_records():
    import ctypes

    import oomph
    from remote import sim, sim_stats

    def work(count):
        for _ in range(count):
            handle = ctypes.c_void_p()
            assert sim.cuStreamCreate(ctypes.byref(handle), 1) == 0
            kept = take(4 * MIB)
            with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
                take(300 * MIB)
                take(1000)
                kept.record_stream(torch.cuda.current_stream())
            del kept
            torch.cuda.synchronize()
            assert sim.cuStreamDestroy_v2(handle) == 0
        torch.cuda.empty_cache()
        return oomph.stats()["record_bytes"], sim_stats().reservation_count

    take(1)
    work(30)
    assert work(300) == work(30)


# ---- record_stream


@simulated
def test_record_stream_keeps_a_freed_block_until_the_stream_is_done():
    held = Held()
    a = take(4 * MIB)
    address = a.data_ptr()
    a.record_stream(held.stream)
    del a
    others = [take(4 * MIB) for _ in range(20)]
    assert address not in [block.data_ptr() for block in others]
    del others
    held.release()
    again = [take(4 * MIB) for _ in range(40)]
    assert address in [block.data_ptr() for block in again]


@simulated
def test_record_stream_of_the_own_stream_changes_nothing():
    a = take(4 * MIB)
    address = a.data_ptr()
    a.record_stream(torch.cuda.current_stream())
    del a
    assert take(4 * MIB).data_ptr() == address


@simulated
def test_record_stream_waits_for_every_stream_named():
    first, second = Held(), Held()
    a = take(4 * MIB)
    a.record_stream(first.stream)
    a.record_stream(second.stream)
    del a
    first.release()
    for _ in range(20):
        take(1000)
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 4 * MIB
    second.release()
    for _ in range(20):
        take(1000)
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 0


@simulated
def test_record_stream_of_a_view_or_of_nothing_is_harmless():
    side = torch.cuda.Stream()
    take(4 * MIB)[MIB:].record_stream(side)
    take(0).record_stream(side)


@simulated
def test_empty_cache_waits_for_recorded_streams():
    from remote import sim_stats

    held = Held()
    a = take(4 * MIB)
    a.record_stream(held.stream)
    del a
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert sim_stats().used_bytes == 0


@simulated
def test_a_shortage_waits_for_recorded_streams():
    held = Held()
    a = take(900 * MIB)
    a.record_stream(held.stream)
    del a
    take(900 * MIB)


# ---- Pages between streams


@simulated
def test_pages_of_one_stream_serve_another_when_memory_is_short():
    import oomph

    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    stolen = oomph.stats()["pages_stolen"]
    with torch.cuda.stream(first):
        take(1024 * MIB)
    with torch.cuda.stream(second):
        take(1024 * MIB)
    assert oomph.stats()["pages_stolen"] == stolen + 512


@simulated
def test_pages_move_to_another_stream_only_after_their_work():
    held = Held()
    before = held_waits()
    with torch.cuda.stream(held.stream):
        a = take(1024 * MIB)
        a.zero_()
        del a
    take(1024 * MIB)  # had to wait: the simulation lets go of what is waited for
    assert held_waits() == before + 1
    held.release()


@simulated
def test_a_hit_waits_for_nothing():
    held = Held()
    take(4 * MIB)
    before = held_waits()
    for _ in range(100):
        take(4 * MIB)
    assert held_waits() == before
    held.release()


# ---- Threads


def in_threads(count: int, work) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@simulated
def test_threads_allocate_on_streams_of_their_own():
    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for i in range(200):
                a = take((i * 7919 * (number + 1)) % (8 * MIB) + 1)
                a.zero_()

    in_threads(4, work)


@simulated
def test_threads_short_of_memory_serve_each_other():
    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for i in range(30):
                a = take((128 + 8 * ((i + number) % 8)) * MIB)
                a.zero_()
                del a

    in_threads(4, work)


@simulated
def test_a_block_may_be_freed_by_another_thread():
    blocks: list[torch.Tensor] = [take(3 * MIB) for _ in range(100)]
    in_threads(4, lambda _: [blocks.pop() for _ in range(10)].clear())
    assert torch.cuda.memory_allocated() == 60 * 3 * MIB
    blocks.clear()


@simulated
def test_the_gil_is_released_while_the_allocator_waits_for_the_gpu():
    # The GPU waits for a function in Python, whose thread is never given the GIL by
    # force: it runs while the allocator waits, or this never ends.
    import ctypes

    from remote import sim

    side = torch.cuda.Stream()
    now = ["before"]
    seen = []
    look = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.extend(now))
    launch = ctypes.PyDLL(sim._name).cuLaunchHostFunc  # with the GIL
    with torch.cuda.stream(side):
        a = take(1024 * MIB)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    try:
        launch_code = launch(ctypes.c_void_p(side.cuda_stream), look, None)
        del a
        now[:] = ["within"]
        b = torch.UntypedStorage(1024 * MIB, device="cuda")  # PyTorch keeps the GIL
        now[:] = ["after"]
    finally:
        sys.setswitchinterval(interval)
    assert launch_code == 0
    assert seen == ["within"]
    del b
