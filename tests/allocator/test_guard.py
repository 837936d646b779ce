"""Use after free, caught by `guard` and told with the lines that are to blame."""

from __future__ import annotations

import re

import pytest
from support import Result, run

CARD = "1GiB,context=0"
# What a kernel of the program's own does, which PyTorch does not know of: `use` reads
# or writes 16 bytes, which takes 1 ms.
PROGRAM = """
import ctypes, torch, oomph

sim = ctypes.CDLL("libcuda.so.1")
launch = sim.oomph_sim_launch
launch.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int]
launch.argtypes += [ctypes.c_uint64]

def use(address, stream=None):
    stream = stream or torch.cuda.current_stream()
    assert launch(stream.cuda_stream, address, 16, 1, 1000000) == 0

def take():
    return torch.empty(700, device="cuda")  # taken

def drop(tensors):
    tensors.clear()  # dropped

others = [torch.ones(1000, device="cuda") for _ in range(3)]
block = [take()]
address = block[0].data_ptr()

"""
LATER = """
drop(block)
others.clear()
torch.cuda.synchronize()
kept = torch.ones(10, device="cuda")
use(address)
torch.cuda.synchronize()
"""
AT_ONCE = """
use(address)
drop(block)
use(address)
torch.cuda.synchronize()
"""
ON_SIDE = """
side = torch.cuda.Stream()
use(address, side)
{record}
drop(block)
kept = torch.ones(10, device="cuda")
del kept
kept = torch.ones(10, device="cuda")
torch.cuda.synchronize()
"""


def execute(guard: str, code: str) -> Result:
    return run(PROGRAM + code, card=CARD, conf=f"reserve:0,guard:{guard}")


def line(marker: str) -> int:
    """Of the program's line that ends in a remark."""
    lines = PROGRAM.splitlines()
    return next(i for i, text in enumerate(lines, 1) if text.endswith(f"# {marker}"))


def assert_named(result: Result) -> None:
    """The one block is told, with its two lines, beside the program's own error."""
    assert result.code == 1
    assert "AcceleratorError: CUDA error: an illegal memory access" in result.err
    head = r"memory was used after it was freed, at (0x\w+), in this block:\n"
    found = re.search(
        head + r" +2\.73 KiB at \1, .*\n"
        r" +allocated at <string>:(\d+) \(take\)\n +freed at +<string>:(\d+) \(drop\)",
        result.err,
    )
    assert found, result.err
    assert (int(found[2]), int(found[3])) == (line("taken"), line("dropped"))
    assert result.err.count("allocated at") == 1


def assert_silent(result: Result) -> None:
    assert (result.code, result.said) == (0, "")


# ---- What is caught


@pytest.mark.parametrize("guard", ["unmap", "sync", "unmap+fill", "sync+fill"])
def test_a_kernel_that_uses_freed_memory_later_is_named(guard):
    assert_named(execute(guard, LATER))


@pytest.mark.parametrize("guard", ["off", "fill"])
def test_other_guards_do_not_see_it(guard):
    assert_silent(execute(guard, LATER))


def test_sync_catches_what_the_same_stream_does_right_after_the_free():
    assert_named(execute("sync", AT_ONCE))


def test_unmap_lets_it_run():
    assert_silent(execute("unmap", AT_ONCE))


@pytest.mark.parametrize("guard", ["unmap", "sync"])
def test_a_side_stream_that_was_not_recorded_is_caught(guard):
    assert_named(execute(guard, ON_SIDE.format(record="")))


@pytest.mark.parametrize("guard", ["unmap", "sync"])
def test_a_side_stream_that_was_recorded_is_waited_for(guard):
    record = "block[0].record_stream(side)"
    assert_silent(execute(guard, ON_SIDE.format(record=record)))


# ---- How it is told


def test_an_error_that_was_caught_is_reported_at_exit():
    later = LATER.replace("torch.cuda.synchronize()\n", "", 1)
    body = "".join(f"    {text}\n" for text in later.splitlines())
    result = execute("unmap", f"try:\n{body}except RuntimeError:\n    print('caught')")
    assert (result.code, result.out) == (0, "caught\n")
    assert "freed at     <string>:" in result.err
    assert result.err.count("memory was used after it was freed") == 1


def test_an_error_of_a_thread_is_reported():
    code = """
import threading
def work():
    with torch.cuda.stream(torch.cuda.Stream()):
        use(address)
        torch.cuda.synchronize()
drop(block)
torch.cuda.synchronize()
kept = take()
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(len(oomph.guard.report().candidates))
"""
    result = execute("unmap", code)
    assert result.out == "1\n"
    assert "Exception in thread" in result.err
    assert result.err.count("memory was used after it was freed") == 1


def test_of_several_faults_the_first_is_reported():
    code = """
use(address)
drop(block)
use(address)
with torch.cuda.device(1):
    block = [take()]
    later = block[0].data_ptr()
    drop(block)
    use(later)
for device in range(2):
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        print(oomph.guard.report(device).is_exact)
assert oomph.guard.report().fault_address == address
"""
    result = run(PROGRAM + code, card=f"{CARD},devices=2", conf="reserve:0,guard:sync")
    assert (result.code, result.out) == (0, "True\nFalse\n"), result.err


def test_other_errors_are_shown_as_ever():
    result = execute("unmap", "drop(block)\nraise RuntimeError('mine')")
    assert result.code == 1
    assert result.err.endswith("RuntimeError: mine\n")


def test_without_an_address_the_blocks_unmapped_last_are_reported_newest_first():
    code = """
drop(block)
others.clear()
from oomph import guard, simulate
simulate.misuses = lambda: []  # as on a GPU
use(address)
try:
    torch.cuda.synchronize()
except RuntimeError:
    found = oomph.guard.report()
assert not found.is_exact and found.fault_address is None
assert len(found.candidates) == 4
assert found.candidates[-1].address == address and address in found.candidates[-1]
assert found.candidates[-1].requested_bytes == 2800
assert found.candidates[-1].size_bytes == 2 << 20
assert found.candidates[-1].allocated_at.function == "take"
times = [block.unmapped_ns for block in found.candidates]
assert times == sorted(times, reverse=True)
print(found)
"""
    result = execute("sync", code)
    assert result.code == 0, result.err
    assert "unmapped last, newest first (4 of 4" in result.out
    assert result.out.count("allocated at <string>") == 4


# ---- What it costs, and what it leaves alone


def test_the_bytes_lost_to_rounding_are_reported():
    result = execute("unmap", "print(oomph.stats()['guard_rounding_bytes'])")
    small, other = (2 << 20) - 3072, (2 << 20) - 4096
    assert int(result.out) == small + 3 * other


def test_graphs_are_captured_and_replayed_under_guard():
    code = """
x = torch.ones(1000, device="cuda")
graph = torch.cuda.CUDAGraph()
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    y = x * 2
torch.cuda.current_stream().wait_stream(side)
drop(block)
with torch.cuda.graph(graph):
    y = (x * 2 + 1) * 3
    others.clear()
for _ in range(3):
    graph.replay()
torch.cuda.synchronize()
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    z = x + 1
    w = x + 2
assert z.data_ptr() >> 21 == w.data_ptr() >> 21  # they share a page
del x, y, z, w, graph, pool
torch.cuda.empty_cache()
oomph._C.check(0)
assert sim.oomph_sim_misuse(0) == 0
"""
    assert_silent(execute("sync+fill", code))
