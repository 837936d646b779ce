"""Tensors in unreachable reference cycles are freed before memory counts as short."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from support import MIB, Simulated, run

# Each of which holds 3 blocks of 100 MiB, and what the context takes.
CARD = "360MiB,context=0,memory=real"
spilling = Simulated(CARD, "reserve:0,host_limit:1GiB")
failing = Simulated(CARD, "reserve:0,offload:off")
two = Simulated(f"{CARD},devices=2", "reserve:0,offload:off")


def take(mib: int = 100, device: str = "cuda") -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device=device)


class Cycle:
    """What only Python's collector can free, with a tensor on the device."""

    def __init__(self, tensor: torch.Tensor | None = None) -> None:
        self.tensor = take() if tensor is None else tensor
        self.cycle = self


@contextlib.contextmanager
def collector_off():
    """The collector frees nothing by itself, as it may for long."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def counts(*names: str) -> list[int]:
    import oomph

    now = oomph.stats()
    return [now[name] for name in names]


def fill() -> None:
    for _ in range(3):
        Cycle()


# ---- Who asks, and how


@spilling
def test_garbage_makes_room_before_a_block_falls_back_to_the_host():
    import oomph

    before = oomph.stats()
    kept = torch.arange(1 << 20).cuda()  # of 8 MiB
    with collector_off():
        for number in range(12):
            Cycle(take().fill_(number))
    now = oomph.stats()
    assert now["rescues"] == before["rescues"] and now["host_bytes"] == 0
    assert now["rung_garbage"] - before["rung_garbage"] == 3
    assert now["garbage_bytes"] - before["garbage_bytes"] == 9 * 100 * MIB
    assert torch.equal(kept.cpu(), torch.arange(1 << 20))


@failing
def test_garbage_makes_room_before_an_error():
    kept = torch.arange(1 << 20).cuda()
    with collector_off():
        for _ in range(12):
            Cycle()
    assert torch.equal(kept.cpu(), torch.arange(1 << 20))


@failing
def test_what_can_be_reached_is_left_alone():
    kept = [Cycle(torch.full((25 * MIB,), 7.0).cuda()) for _ in range(2)]
    with collector_off():
        Cycle()
        more = torch.full((25 * MIB,), 8.0).cuda()
    assert all(torch.all(cycle.tensor.cpu() == 7) for cycle in kept)
    assert torch.all(more.cpu() == 8)


@failing
def test_garbage_that_other_streams_use_is_waited_for():
    side = torch.cuda.Stream()
    with collector_off():
        for _ in range(3):
            block = take()
            with torch.cuda.stream(side):
                torch.cuda._sleep(10**6)
                block.zero_()
            block.record_stream(side)
            Cycle(block)
            del block
        take(300)


@failing
def test_a_mempool_gets_room_from_garbage():
    with collector_off():
        fill()
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            take(200)


@two
def test_garbage_is_collected_on_whichever_device_it_lies():
    with collector_off():
        for device in ("cuda:0", "cuda:1"):
            for _ in range(6):
                Cycle(take(device=device))
            assert take(device=device).device == torch.device(device)


@failing
def test_a_storage_that_grows_with_the_gil_held_gets_room():
    block = take(1)
    with collector_off():
        fill()
        block.untyped_storage().resize_(300 * MIB)
    assert block.untyped_storage().nbytes() == 300 * MIB


@failing
def test_explain_names_garbage_as_such():
    import oomph

    kept = take(50)
    with collector_off():
        fill()
        found = oomph.explain()
    totals = {total.name.split(":")[0]: total for total in found.categories}
    assert totals["garbage"].size_bytes == 300 * MIB
    assert totals["garbage"].count == 3
    assert "300.00 MiB  garbage: unreachable objects" in found.text
    assert {line.category.split(":")[0] for line in found.lines} >= {"garbage"}
    assert torch.cuda.memory_allocated() == kept.nbytes


# ---- Where it must not, or cannot


@pytest.mark.long
@failing
def test_nothing_is_collected_while_a_stream_captures():
    graph = torch.cuda.CUDAGraph()
    with collector_off():
        fill()
        before = counts("rung_garbage")
        with pytest.raises(torch.OutOfMemoryError) as caught, torch.cuda.graph(graph):
            gc.disable()
            fill()  # torch.cuda.graph() collects when it begins
            take()
        assert counts("rung_garbage") == before
        assert (
            "Python's garbage collector does not run while a CUDA graph is captured"
            in str(caught.value)
        )
        del caught
        take(300)


@failing
def test_frozen_objects_are_left_alone():
    with collector_off():
        fill()
        gc.freeze()
        try:
            with pytest.raises(torch.OutOfMemoryError):
                take()
        finally:
            gc.unfreeze()
        take(300)


RESCUES = "reserve:0,host_limit:4GiB"
BEGINNING = """
    import ctypes, gc, os, sys, threading, time
    import torch, oomph

    MIB = 1 << 20
"""


def script(body: str, conf: str = RESCUES, card: str = CARD) -> str:
    """What a script of its own prints, where a collection in vain puts off the next."""
    helpers = "\n".join(map(inspect.getsource, (take, Cycle, counts, fill)))
    begin = textwrap.dedent(BEGINNING) + helpers + "\ngc.disable()\n"
    code = "from __future__ import annotations\n" + begin + textwrap.dedent(body)
    result = run(code, card=card, conf=conf)
    assert result.code == 0, result.said
    return result.out.strip().splitlines()[-1]


def test_a_collection_in_vain_is_not_soon_repeated():
    said = script("""
        # The longer it takes, the later the next: for all of the 30 rescues.
        gc.callbacks.append(lambda *_: time.sleep(0.2))
        kept = [take() for _ in range(3)]
        for _ in range(30):
            kept.append(take())
        print(*counts("rescues", "rung_garbage"))
    """)
    assert said == "30 1"


def test_an_error_is_preceded_by_a_collection_all_the_same():
    said = script(
        """
        kept = [take() for _ in range(3)]
        try:
            take()
        except torch.OutOfMemoryError:
            pass
        del kept
        fill()
        take(300)
        print(*counts("rung_garbage"))
        """,
        "reserve:0,offload:off",
    )
    assert said == "2"


# ---- Nothing waits for ever


def test_a_thread_that_keeps_the_gil_is_not_waited_for_long():
    said = script("""
        hold = ctypes.PyDLL(None).usleep
        began = []
        sys.setswitchinterval(0.2)
        def short():
            began.append(True)
            short.block = take()  # gives the GIL up
        rescues = 0
        while rescues == 0:  # the collector, not this thread, got the GIL then
            began.clear()
            short.block = None
            fill()
            thread = threading.Thread(target=short)
            thread.start()
            while not began:
                pass
            hold(4_000_000)
            (rescues,) = counts("rescues")
            thread.join()
        print(rescues)
    """)
    assert said == "1"


def test_a_finalizer_that_wants_the_waiting_threads_lock_is_not_waited_for_long():
    said = script("""
        lock = threading.Lock()
        class Locking(Cycle):
            def __del__(self):
                with lock:
                    pass
        for _ in range(3):
            Locking()
        with lock:
            block = take()
        print(*counts("rescues"))
    """)
    assert said == "1"


@failing
def test_a_finalizer_may_allocate():
    sizes = []

    class Allocating(Cycle):
        def __del__(self):
            try:
                sizes.append(take(50).numel())
            except torch.OutOfMemoryError:
                sizes.append(0)

    with collector_off():
        for _ in range(6):
            Allocating()
        take(300)
    assert len(sizes) == 6 and set(sizes) <= {0, 50 * MIB}


@failing
def test_memory_may_be_short_while_the_collector_runs():
    found = []

    def note(phase, info):
        with contextlib.suppress(torch.OutOfMemoryError):
            found.append(take(350).numel())

    with collector_off():
        fill()
        gc.callbacks.append(note)
        try:
            gc.collect()
            fill()
            found.append(take(300).numel())
        finally:
            gc.callbacks.remove(note)
    assert 300 * MIB in found


@contextlib.contextmanager
def busy_processors():
    """So that threads wake long after they could, and others have gone on."""
    loop = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(loop) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@failing
def test_threads_that_are_short_at_once_all_get_their_blocks():
    errors = []

    def work():
        try:
            for _ in range(10):
                Cycle(take(50))
        except torch.OutOfMemoryError as error:
            errors.append(error)

    with collector_off(), busy_processors():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
    assert errors == []


class Twice(torch.autograd.Function):
    """Whose backward needs much, and asks for it in autograd's thread."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad.repeat(300 * MIB // 4)[:1] * 2


@failing
def test_autograds_threads_get_room():
    x = torch.ones(1, device="cuda", requires_grad=True)
    y = Twice.apply(x)
    with collector_off():
        fill()
        y.backward()
    assert x.grad is not None


def test_a_busy_interpreter_lets_the_collector_run():
    said = script("""
        ends = threading.Event()
        def spin():
            while not ends.is_set():
                sum(range(100))
        spinners = [threading.Thread(target=spin) for _ in range(3)]
        for thread in spinners:
            thread.start()
        for _ in range(8):
            Cycle()
        ends.set()
        print(*counts("rescues"))
    """)
    assert said == "0"


# ---- The end


@pytest.mark.parametrize(
    "ending",
    [
        "import atexit; atexit.register(lambda: (fill(), take(200)))",
        "os.fork() or sys.exit()",
    ],
)
def test_a_process_whose_garbage_was_collected_ends(ending):
    said = script(f"""
        fill()
        take()
        print(*counts("rescues", "rung_garbage"), flush=True)
        {ending}
    """)
    assert said == "0 1"
