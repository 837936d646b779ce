"""Days on which all goes wrong: no driver, forks, Ctrl-C, an end with tensors alive."""

import functools
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
from support import MIB, TIMEOUT_S, Simulated, environment, lines, run

CARD = "256MiB,context=0"
RESCUES = "reserve:0,host_limit:256MiB"
spilling = Simulated(CARD, RESCUES)


def take(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def usleep_on(stream: torch.cuda.Stream, us: int) -> None:
    """Keeps a stream busy with a host function, in real time."""
    import ctypes

    from remote import sim

    function = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
    handle, argument = ctypes.c_void_p(stream.cuda_stream), ctypes.c_void_p(us)
    assert sim.cuLaunchHostFunc(handle, function, argument) == 0


# ---- Drivers


def test_without_a_driver_pytorch_says_so_and_the_cpu_works():
    result = run(
        """
        import torch
        import oomph
        oomph.step()
        print(torch.cuda.is_available(), torch.ones(3).sum(), oomph.stats(0)["steps"])
        torch.ones(3, device="cuda")
        """,
        conf=RESCUES,
    )
    assert result.out == "False tensor(3.) 0\n"
    assert result.code == 1
    assert "RuntimeError: Found no NVIDIA driver on your system" in result.err


def test_an_old_driver_is_an_error_that_names_the_one_needed():
    code = "import torch; print(torch.ones(3, device='cuda').device)"
    result = run(code, card=f"{CARD},driver=11080", conf=RESCUES)
    assert result.code == 1
    assert (
        "RuntimeError: oomph: the CUDA driver is for CUDA 11.8; oomph needs one for "
        "CUDA 12.0 or newer (525.60 or newer)"
    ) in result.err
    result = run(code, card=f"{CARD},driver=12000", conf=RESCUES)
    assert result.out == "cuda:0\n"


# ---- Forks

FORK = """
import os
import sys
import torch
import oomph

kept = [
    torch.empty(size << 20, dtype=torch.uint8, device="cuda") for size in (200, 100, 1)
]


def in_child(act):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        act()
        sys.exit(3)  # with all that runs at exit
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def check():
    oomph._C.check(0)
    kept.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
    print(oomph.stats()["rescues"], torch.cuda.memory_allocated() >> 20)
"""


def test_a_forked_child_that_does_not_use_cuda_harms_nobody():
    result = run(
        FORK
        + """
def act():
    kept.clear()
    oomph.step()
    torch.cuda.empty_cache()

print(in_child(act), oomph.stats()["rescues"])
check()
""",
        card=CARD,
        conf=RESCUES,
    )
    assert result.out.splitlines() == ["3 2", "3 302"]
    assert len(lines(result.err, "GPU 0 was out of memory:")) == 1, "the table of one"


def test_a_forked_child_that_uses_cuda_gets_an_error():
    result = run(
        FORK
        + """
def act():
    for call in (
        lambda: torch.empty(1, device="cuda"),
        lambda: torch._C._cuda_cudaCachingAllocator_raw_alloc(1000, 0),
    ):
        try:
            call()
        except RuntimeError as error:
            print(str(error)[:50])

print(in_child(act))
check()
""",
        card=CARD,
        conf=RESCUES,
    )
    assert result.out.splitlines() == [
        "Cannot re-initialize CUDA in forked subprocess. To",
        "oomph: CUDA cannot be used in a forked child",
        "3",
        "3 302",
    ]


def test_a_child_forked_before_cuda_is_used_has_oomph_too():
    result = run(
        """
        import os
        import torch
        import oomph
        oomph.stats()
        pid = os.fork()
        kept = [
            torch.empty(200 << 20, dtype=torch.uint8, device="cuda") for _ in range(2)
        ]
        if pid:
            print(os.waitpid(pid, 0)[1])
        print(oomph.stats()["rescues"], flush=True)
        """,
        card=CARD,
        conf=RESCUES,
    )
    assert sorted(result.out.splitlines()) == ["0", "1", "1"]


# ---- The end

BEGINNING = """
import builtins
import sys
import torch
import oomph

def take(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")

block = take(1)
"""
ENDINGS = {
    "tensors in globals and cycles": """
        class Cycle:
            pass
        cycle = Cycle()
        cycle.itself, cycle.block = cycle, block
        torch.kept = builtins.kept = [block, torch.ones(10, device="cuda")]
        """,
    "a rescued block": """
        builtins.kept = [take(200), take(100)]
        """,
    "graphs and pools": """
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.MemPool()
        with torch.cuda.graph(graph):
            twice = block * 2
        graph.replay()
        with torch.cuda.use_mem_pool(pool):
            other = take(1)
        builtins.kept = [graph, twice, pool, other]
        """,
    "a capture under way": """
        graph = torch.cuda.CUDAGraph()
        torch.cuda.set_stream(torch.cuda.Stream())
        graph.capture_begin()
        builtins.kept = [graph, block * 2]
        """,
    "tensors of threads": """
        import threading
        local, there = threading.local(), threading.Event()
        def work():
            local.block = take(1)
            with torch.cuda.stream(torch.cuda.Stream()):
                local.other = take(30)
            there.set()
            threading.Event().wait()
        threading.Thread(target=work, daemon=True).start()
        there.wait()
        """,
    "blocks that wait for other streams": """
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(10**9)
        block.record_stream(side)
        del block
        """,
    "statistics and allocations at exit": """
        import atexit
        atexit.register(lambda: (take(200), take(100), oomph.stats(), oomph.step()))
        """,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_ends_quietly_with_its_own_exit_code(ending):
    code = BEGINNING + textwrap.dedent(ENDINGS[ending]) + "sys.exit(5)"
    result = run(code, card=CARD, conf=RESCUES)
    said, _, table = result.said.partition("GPU 0 was out of memory:\n")
    said = [
        line for line in said.splitlines() if "fell back to host memory" not in line
    ]
    rest = [line for line in table.splitlines() if not line.startswith("  ")]
    assert (result.code, said, rest) == (5, [], [])


def test_an_uncaught_error_of_memory_ends_the_process_as_always():
    result = run(
        "import torch; kept = [torch.empty(200 << 20, device='cuda')] * 2",
        card=CARD,
        conf="reserve:0,offload:off",
    )
    assert result.code == 1
    assert "\ntorch.OutOfMemoryError: CUDA out of memory." in result.err


# ---- Ctrl-C


@spilling
def test_ctrl_c_while_the_allocator_waits_is_heard_and_costs_nothing():
    import oomph

    side = torch.cuda.Stream()
    main = threading.main_thread().ident
    before = torch.cuda.memory_allocated()
    for pause_s in (0.0, 0.05, 0.15):
        with torch.cuda.stream(side):
            a = take(200 * MIB)
        usleep_on(side, 200_000)
        del a
        timer = threading.Timer(pause_s, signal.pthread_kill, (main, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            kept = [take(200 * MIB), take(100 * MIB)]
            time.sleep(TIMEOUT_S / 2)
        kept = None
        timer.join()
        assert kept is None
        assert torch.cuda.memory_allocated() == before
        oomph._C.check(0)
    take(200 * MIB)


@spilling
def test_ctrl_c_while_a_rescue_is_reported_is_heard():
    import logging

    import oomph

    class Interrupted(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            signal.raise_signal(signal.SIGINT)

    handler = Interrupted()
    logging.getLogger("oomph").addHandler(handler)
    oomph.step()  # the first rescue of a step is reported
    try:
        with pytest.raises(KeyboardInterrupt):
            kept = [take(200 * MIB), take(100 * MIB)]
            time.sleep(TIMEOUT_S / 2)
    finally:
        logging.getLogger("oomph").removeHandler(handler)
    kept = None
    assert kept is None


@spilling
def test_a_report_that_fails_disturbs_nobody():
    import logging

    import oomph

    class Broken(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise OSError("disk full")

    broken = Broken()
    logging.getLogger("oomph").addFilter(broken)
    oomph.step()
    try:
        kept = [take(200 * MIB), take(100 * MIB)]
        time.sleep(0.01)
    finally:
        logging.getLogger("oomph").removeFilter(broken)
    del kept


@pytest.mark.long
def test_a_killed_script_dies_of_its_signal():
    code = (
        "import torch; kept = torch.ones(3, device='cuda'); print(flush=True)\n"
        "import time; time.sleep(600)"
    )
    # What a shell starts in the background ignores Ctrl-C, and so do its children.
    hear = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        [sys.executable, "-m", "oomph", "run", "--simulate", CARD, "/dev/stdin"],
        preexec_fn=hear,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(code)
    process.stdin.close()
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT_S) == -signal.SIGINT
    assert process.stderr is not None
    assert process.stderr.read().rstrip().endswith("KeyboardInterrupt")
