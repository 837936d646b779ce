"""``window:gated``: memory moves while other threads work on it, or not at all.

The simulated card computes here, so that work that is lost or done twice is a value
that is wrong; work on memory that is not mapped is an error of the driver.
"""

import ctypes
import threading

import oomph
import pytest
import torch
from support import MIB, Simulated
from test_residency import born_on_host

CARD = "256MiB,context=0,memory=values,cc=8.6,host=2GiB"
gated = Simulated(CARD, "reserve:0,host_limit:1GiB,window:gated", OMP_NUM_THREADS="1")
never = Simulated(CARD, "reserve:0,host_limit:1GiB", OMP_NUM_THREADS="1")

STEPS = 40  # a window that was missed is tried again after 16
SWAPS = 60


def steps_until_on_device(tensor: torch.Tensor) -> int:
    """How many it takes for the tensor to return."""
    for step in range(1, STEPS):
        oomph.step()
        if oomph.residency(tensor).place == "device":
            return step
    return STEPS


class Launcher(threading.Thread):
    """Adds one to a tensor again and again, on a stream that nothing allocates on."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.tensor = tensor
        self.stream = torch.cuda.Stream()
        self.stops = threading.Event()
        self.launched = 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.stream.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(self.stream):
                while not self.stops.is_set():
                    self.tensor.add_(1)
                    self.launched += 1
            self.stream.synchronize()
        except Exception as error:  # told by finish()
            self.error = error

    def finish(self) -> int:
        """Ends it; gives how often it added."""
        self.stops.set()
        self.join()
        if self.error is not None:
            raise self.error
        return self.launched


@never
def test_by_default_what_nobody_said_to_rest_stays_on_the_host():
    tensor = born_on_host(32 * MIB)
    assert steps_until_on_device(tensor) == STEPS
    assert oomph.stats()["windows"] == 0


@gated
def test_behind_a_gate_it_returns():
    tensor = born_on_host(32 * MIB)
    expected = tensor.cpu()
    before = oomph.stats()["windows"]
    assert steps_until_on_device(tensor) < STEPS
    assert oomph.stats()["windows"] == before + 1
    assert torch.equal(tensor.cpu(), expected)


@gated
def test_it_returns_while_another_thread_works_on_it():
    whole = born_on_host(32 * MIB)
    whole.zero_()
    mine, others = whole.chunk(2)
    launcher = Launcher(others)
    launcher.start()
    steps = steps_until_on_device(whole)
    for _ in range(5):
        mine.add_(1)
    count = launcher.finish()
    assert steps < STEPS
    assert count > 0
    assert set(mine.unique().tolist()) == {5}
    assert set(others.unique().tolist()) == {count % 256}


@gated
def test_a_tensor_moves_to_and_fro_while_another_thread_works_on_it():
    whole = torch.zeros(2 * MIB, dtype=torch.int32, device="cuda")
    mine, others = whole.chunk(2)
    launcher = Launcher(others)
    launcher.start()
    added = moved = 0
    for swap in range(SWAPS):
        mine.add_(1)
        added += 1
        move = oomph.promote if swap % 2 else oomph.evict
        try:
            moved += move(whole).moved_bytes > 0
        except RuntimeError as error:
            assert "no window: " in str(error)
    count = launcher.finish()
    assert moved > 0
    assert count > 0
    assert set(mine.unique().tolist()) == {added}
    assert set(others.unique().tolist()) == {count}


@gated
def test_with_a_process_group_no_stream_is_held():
    import torch.distributed as dist

    tensor = torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match="may wait for other processes"):
            oomph.evict(tensor)
    finally:
        dist.destroy_process_group()
    assert oomph.residency(tensor).place == "device"
    assert oomph.evict(tensor).moved_bytes == 16 * MIB


@gated
def test_once_a_stream_was_made_elsewhere_no_stream_is_held():
    from remote import sim

    tensor = torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")
    handle = ctypes.c_void_p()
    assert sim.cuStreamCreate(ctypes.byref(handle), 1) == 0  # non-blocking
    torch.cuda.ExternalStream(handle.value)
    with pytest.raises(RuntimeError, match="a stream that it may destroy"):
        oomph.evict(tensor)
    assert oomph.residency(tensor).place == "device"
