"""How a process comes to see the simulated GPU, and what it says if it cannot."""

from pathlib import Path

import pytest
from support import GIB, lines, oomph, run

BAD_CARDS = [
    ("", "must start with the memory of a device"),
    ("devices=2", "must start with the memory of a device"),
    ("12GB/s", "must start with the memory of a device"),
    ("1GiB,speed=3", "unknown key 'speed'; allowed are: devices, host, link, fabric"),
    ("1GiB,devices=17", "devices=17 is not allowed; use 1 to 16"),
    ("1GiB,host=much", "host=much is not allowed; use a size, such as 128GiB"),
    ("1GiB,link=25GB", "link=25GB is not allowed; use a size per second"),
    ("1GiB,cc=9", "cc=9 is not allowed; use a compute capability"),
    ("1GiB,context=1GiB", "CUDA itself takes 1024 MiB of it, which leaves none"),
    ("rtx1,host=1GiB", "or with a GPU: t4, a10, l4, rtx3060, rtx3090, rtx4070"),
    ("1GiB,gpu=rtx1", "gpu=rtx1 is not allowed; use t4, a10, l4, rtx3060, rtx3090"),
    ("1GiB,launch=3us", "launch= needs a card: add gpu="),
]


def make_torch(folder: Path, version: str, cuda: str | None) -> Path:
    """A package torch that has nothing but its version."""
    package = folder / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "version.py").write_text(
        f"from typing import Optional\n__version__ = '{version}'\ndebug = False\n"
        f"cuda: Optional[str] = {cuda!r}\n"
    )
    return folder


# ---- cards


@pytest.mark.parametrize(("card", "why"), BAD_CARDS)
def test_a_bad_card_is_refused_before_the_script_starts(card, why, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('started')")
    result = oomph("run", "--simulate", card, script)
    assert result.code == 2
    assert result.out == ""
    assert len(result.err.splitlines()) == 1
    assert why in result.err


@pytest.mark.parametrize(("card", "why"), BAD_CARDS[1:])
def test_a_bad_card_in_the_environment_is_one_line_and_python_goes_on(card, why):
    result = run(
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(2)'])",
        card=card,
        anew=True,
    )
    assert result.code == 0
    assert result.out == "2\n"
    assert len(result.err.splitlines()) == 1
    assert "the GPU is not simulated" in result.err
    assert why in result.err


# ---- devices


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 2), ("1", 1), ("1,0", 2), ("2", 0), ("", 0)]
)
def test_the_program_sees_the_devices_that_are_visible(visible, count):
    code = """
        import torch
        print(torch.cuda.device_count(), torch._C._cuda_getDeviceCount())
        if torch.cuda.is_available():
            torch.ones(3, device=f"cuda:{torch.cuda.device_count() - 1}")
    """
    result = run(code, card="1GiB,devices=2", CUDA_VISIBLE_DEVICES=visible)
    assert result.code == 0, result.err
    assert result.out == f"{count} {count}\n"


def test_devices_are_known_by_their_uuids_as_nvml_tells_them():
    code = """
        import ctypes
        import torch
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(80)
        assert nvml.nvmlInit_v2() == 0
        assert nvml.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(handle)) == 0
        assert nvml.nvmlDeviceGetUUID(handle, text, 80) == 0
        assert text.value.decode() == f"GPU-{torch.cuda.get_device_properties(1).uuid}"
        assert nvml.nvmlDeviceGetHandleByIndex_v2(2, ctypes.byref(handle)) != 0
    """
    result = run(code, card="1GiB,devices=2")
    assert result.code == 0, result.err


def test_python_and_the_driver_read_a_card_alike():
    result = run(
        """
        from oomph.simulate import Card, parse_card
        assert parse_card("1.5gib") == Card(3 << 29)
        assert parse_card("1GiB,devices=3,host=2GB") == Card(1 << 30, 3, 2 * 10**9)
        """
    )
    assert result.code == 0, result.err


def test_asking_about_a_card_leaves_no_driver_behind():
    result = run(
        """
        from pathlib import Path
        from oomph.simulate import parse_card
        parse_card("1GiB")
        print("_sim" in Path("/proc/self/maps").read_text())
        """
    )
    assert result.out == "False\n"


# ---- starting


def test_without_the_variable_nothing_is_loaded():
    result = run("import sys; print('oomph' in sys.modules, 'ctypes' in sys.modules)")
    assert result.out == "False False\n"


@pytest.mark.long
def test_a_process_can_load_a_card_itself():
    result = run(
        """
        import oomph.simulate
        oomph.simulate.load("2GiB")
        import torch
        print(torch.cuda.get_device_properties(0).total_memory)
        """
    )
    assert result.out == f"{2 * GIB}\n"


def test_the_children_of_a_process_that_loaded_a_card_have_it_too():
    result = run(
        """
        import subprocess, sys
        import oomph.simulate
        oomph.simulate.load("2GiB")
        code = "print('_sim/libcudart' in open('/proc/self/maps').read())"
        subprocess.run([sys.executable, "-c", code])
        """
    )
    assert result.out == "True\n"


def test_a_card_comes_too_late_after_pytorch(tmp_path):
    result = run(
        "import torch, oomph.simulate; oomph.simulate.load('1GiB')",
        PYTHONPATH=str(make_torch(tmp_path, "2.11.0+cu130", "13.0")),
    )
    assert "PyTorch is imported already" in result.err


def test_a_second_card_is_refused():
    result = run("import oomph.simulate as s; s.load('1GiB'); s.load('2GiB')")
    assert "a card of 1GiB is simulated already" in result.err


@pytest.mark.long
def test_the_banner_is_said_once_for_all_processes():
    result = run(
        """
        import subprocess, sys
        import torch
        subprocess.run([sys.executable, "-c", "import torch"])
        """,
        card="1.5GiB,devices=2",
    )
    banner = lines(result.err, "the GPU is simulated")
    assert len(banner) == 1
    assert "(2 x 1.50 GiB)" in banner[0]
    assert "times are not a GPU's" in banner[0]


def test_the_banner_of_a_well_known_card_says_that_times_are_modelled():
    result = run("import torch", card="t4")
    assert "times on the virtual clock are modelled from the card's" in result.err


# ---- PyTorch that does not fit


@pytest.mark.parametrize(
    ("version", "cuda", "why"),
    [
        ("2.11.0+cpu", None, "PyTorch 2.11.0+cpu is built for the CPU alone"),
        ("2.7.0+cu118", "11.8", "PyTorch 2.7.0+cu118 is built for CUDA 11.8"),
    ],
)
def test_a_pytorch_that_does_not_fit_is_refused(version, cuda, why, tmp_path):
    path = str(make_torch(tmp_path, version, cuda))
    result = oomph("run", "--simulate", "1GiB", "-m", "this", PYTHONPATH=path)
    assert result.code == 2
    assert why in result.err
    result = run("print('on')", card="1GiB", PYTHONPATH=path, anew=True)
    assert result.out == "on\n"
    assert len(result.err.splitlines()) == 1
    assert why in result.err


def test_a_pytorch_that_is_not_found_yet_is_no_error():
    result = run(
        """
        import importlib.util
        importlib.util.find_spec = lambda name: None
        import oomph.simulate
        oomph.simulate.load("1GiB")
        """
    )
    assert result.code == 0, result.err


def test_a_run_without_pytorch_is_refused():
    result = run(
        """
        import importlib.util
        importlib.util.find_spec = lambda name: None
        import oomph.simulate
        oomph.simulate.check("1GiB")
        """
    )
    assert "PyTorch is not installed: pip install torch" in result.err


# ---- children

CHILDREN = """
import os
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader


class Counts(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.cuda.device_count()


def child(rank, queue):
    queue.put(torch.empty(1, device=f"cuda:{rank}").device.index)


if __name__ == "__main__":
    pid = os.fork()
    if pid == 0:
        print("forked", torch.empty(1, device="cuda").is_cuda, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    torch.cuda.init()
    for batch in DataLoader(Counts(), batch_size=4, num_workers=1, pin_memory=True):
        print("workers", batch.is_pinned(), batch.tolist(), flush=True)
    pid = os.fork()
    if pid == 0:
        try:
            torch.empty(1, device="cuda")
        except RuntimeError as error:
            print(str(error)[:48], flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    queue = mp.get_context("spawn").Queue()
    mp.spawn(child, (queue,), nprocs=2)
    print("spawned", sorted([queue.get(), queue.get()]), flush=True)
"""


@pytest.mark.long
def test_children_see_the_card(tmp_path):
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    result = oomph(
        *("run", "--simulate", "1GiB,devices=2", "--allocator", "native", script)
    )
    assert result.out.splitlines() == [
        "forked True",
        "workers True [2, 2, 2, 2]",
        "Cannot re-initialize CUDA in forked subprocess. ",
        "spawned [0, 1]",
    ]


RANKS = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
block = torch.ones(4, device=f"cuda:{dist.get_rank()}")
dist.all_reduce(block)
sys.stdout.write(f"{block.device} {torch.cuda.mem_get_info()[1]}\\n")
dist.destroy_process_group()
"""


def test_the_ranks_of_torchrun_see_the_card(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    result = oomph(
        *("run", "--simulate", "1GiB,devices=2", "--allocator", "native"),
        *("-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", "2", script),
    )
    said = sorted(lines(result.out, "cuda:"))
    assert said == [f"cuda:0 {GIB}", f"cuda:1 {GIB}"]


def test_operators_run_at_exit(tmp_path):
    """A log that is flushed then may print a tensor."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import torch
x = torch.ones(512, 64, device="cuda")
import logging.handlers
target = logging.StreamHandler()
logger = logging.getLogger("late")
logger.addHandler(logging.handlers.MemoryHandler(1000, target=target))
logger.warning("x is %s", x)
"""
    )
    result = oomph("run", "--simulate", "1GiB,context=0", script)
    assert result.code == 0
    assert "x is tensor(" in result.err
    assert "Error" not in result.err


def test_triton_finds_the_driver(tmp_path):
    script = tmp_path / "compiled.py"
    script.write_text(
        "import torch\n"
        "f = torch.compile(lambda x: torch.nn.functional.gelu(x + 1).sum())\n"
        "print(f(torch.ones(1000, device='cuda')).shape)\n"
    )
    result = oomph(
        *("run", "--simulate", "1GiB", "--allocator", "native", script),
        TRITON_CACHE_DIR=str(tmp_path / "triton"),
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "inductor"),
        TORCHINDUCTOR_COMPILE_THREADS="1",
    )
    assert result.code == 0, result.err
    assert result.out == "torch.Size([])\n"


@pytest.mark.parametrize(
    ("card", "context_mib", "threads"),
    [("t4", 165, 1024), ("rtx4090", 445, 1536), ("1GiB,gpu=a100-40gb", 489, 2048)],
)
def test_a_well_known_card_has_a_context_of_its_size(card, context_mib, threads):
    result = run(
        """
        import torch
        free, total = torch.cuda.mem_get_info()
        properties = torch.cuda.get_device_properties(0)
        print((total - free) >> 20, properties.max_threads_per_multi_processor)
        """,
        card=card,
    )
    assert result.out.split() == [str(context_mib), str(threads)], result.err
