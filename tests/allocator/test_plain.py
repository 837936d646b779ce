"""The two plain C functions, process-wide and in pools; and who is the allocator."""

import pytest
from support import run

CARD = "1GiB,context=0"
CONF = "reserve:0,host_limit:1GiB"

PRELUDE = """
import oomph, torch
MIB = 1 << 20
def take(size):
    return torch.empty(size << 20, dtype=torch.uint8, device="cuda")
def figures(*names):
    stats = oomph.stats(0)
    print(*(stats[n] // MIB if "bytes" in n else stats[n] for n in names))
allocator = torch.cuda.memory.CUDAPluggableAllocator(
    oomph.library_path(), "oomph_torch_malloc", "oomph_torch_free"
)
LIVE = "allocated_bytes.all.current"
"""

LATE = f"""
import os, torch
os.environ["OOMPH_CONF"] = "{CONF}"  # after it was looked at
"""


def program(body: str, *, installed: bool, **options):
    """A program that uses the functions, with oomph installed or without."""
    import textwrap

    begin, conf = ("", CONF) if installed else (LATE, None)
    return run(begin + PRELUDE + textwrap.dedent(body), card=CARD, conf=conf, **options)


WIDE = """
torch.cuda.memory.change_current_allocator(allocator)
blocks = [take(300) for _ in range(4)]
print(oomph.is_installed())
figures("allocator", "rescues", "device_bytes", "host_bytes")
figures(LIVE, "allocation.all.current")
weight = torch.ones(10, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
weight.sum().backward()
optimizer.step()
figures("steps")
del blocks, weight, optimizer
torch.cuda.synchronize()
oomph._C.check(0)
figures(LIVE)
"""


@pytest.mark.parametrize("installed", [False, True])
def test_the_functions_serve_a_whole_process(installed):
    result = program(WIDE, installed=installed)
    assert result.code == 0, result.said
    assert result.out.splitlines() == [
        *("False", "pluggable 1 1024 176", "1200 4", "1", "0")
    ]
    assert "176.00 MiB fell back to host memory" in result.err
    replaced = "another allocator (pluggable) has replaced it"
    assert result.err.count(replaced) == installed


POOL = """
pool = torch.cuda.MemPool(allocator.allocator())
with torch.cuda.use_mem_pool(pool):
    blocks = [take(300) for _ in range({count})]
    print(blocks[0].device, torch.cuda.memory_allocated() // MIB)
figures("rescues", "host_bytes", LIVE)
try:
    with torch.cuda.use_mem_pool(pool):
        take(3000)
except torch.OutOfMemoryError as error:
    print("error")
del blocks, pool
torch.cuda.empty_cache()
figures(LIVE)
oomph._C.check(0)
"""


def test_the_functions_serve_a_pool_of_the_native_allocator():
    result = program(POOL.format(count=4), installed=False)
    assert result.code == 0, result.said
    assert result.out.splitlines() == [*("cuda:0 1200", "1 176 1200", "error", "0")]


def test_such_a_pool_is_oomphs_own_where_oomph_is_installed():
    result = program(POOL.format(count=3), installed=True)
    assert result.code == 0, result.said
    assert result.out.splitlines() == ["cuda:0 900", "0 0 900", "error", "0"]


def test_the_contents_are_those_that_were_written():
    result = run(  # without settings, 256 MiB of the card are kept free
        PRELUDE
        + """
torch.cuda.memory.change_current_allocator(allocator)
blocks = [torch.full((5 << 20,), float(i), device="cuda") for i in range(8)]
print([block.sum().item() / (5 << 20) for block in blocks])
print(oomph.is_installed(), oomph.stats(0)["rescues"])
""",
        card="384MiB,context=0,memory=values",
    )
    assert result.out.splitlines() == [
        *("[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]", "False 2")
    ], result.said


def test_what_there_is_no_memory_for_is_said():
    result = program(
        """
        torch.cuda.memory.change_current_allocator(allocator)
        print(take(3000).data_ptr())
        """,
        installed=False,
    )
    assert result.out == "0\n"
    assert "oomph_torch_malloc had no memory for 2.93 GiB" in result.err


def test_without_a_change_oomph_is_the_allocator():
    result = program(
        "print(oomph.is_installed()); figures('allocator')", installed=True
    )
    assert result.out == "True\noomph\n"
    assert "its place" not in result.err


def test_installing_where_another_took_its_place_is_refused():
    result = program(
        """
        torch.cuda.memory.change_current_allocator(allocator)
        oomph.install()
        """,
        installed=True,
    )
    assert "another allocator has replaced it" in result.err
