"""How host pages are made, and who may use them."""

from __future__ import annotations

import ctypes
import threading
import time

import torch
from support import MIB, Simulated

CARD = "64MiB,context=0,memory=real"
pages = Simulated(CARD, "reserve:0,host_limit:256MiB,host_ahead:0")
pinned = Simulated(
    CARD + ",host-pages=none", "reserve:0,host_limit:256MiB,host_ahead:0"
)


def turns_of_another_thread(call: bytes, delay_us: int) -> int:
    """How often a Python thread gets its turn while host memory is made slowly."""
    from remote import sim

    full = torch.empty(60 * MIB, dtype=torch.uint8, device="cuda")
    stop, turns = threading.Event(), 0

    def count() -> None:
        nonlocal turns
        while not stop.is_set():
            turns += 1
            time.sleep(0.001)

    other = threading.Thread(target=count)
    sim.oomph_sim_slow(call, ctypes.c_uint64(delay_us))
    try:
        other.start()
        before = turns
        on_host = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        during = turns - before
    finally:
        sim.oomph_sim_slow(call, ctypes.c_uint64(0))
        stop.set()
        other.join()
    on_host.fill_(3)
    del on_host, full
    return during


@pages
def test_other_python_threads_run_while_host_pages_are_made():
    assert turns_of_another_thread(b"cuMemCreate", 20_000) > 20


@pinned
def test_other_python_threads_run_while_a_pinned_block_is_made():
    assert turns_of_another_thread(b"cuMemHostAlloc", 200_000) > 10
