"""Libraries that bring an allocator for PyTorch, beside oomph."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from neighbours import folder_of, needs
from support import lines, run

CARD = "512MiB,context=0,memory=values"
CONF = "reserve:0,host_limit:1GiB"
ALLOCATOR = """
#include <stddef.h>
#include <stdint.h>

int cudaMalloc(void **place, size_t bytes);
int cudaFree(void *place);

void *take(ptrdiff_t bytes, int device, void *stream)
{
    void *place = NULL;
    (void)device, (void)stream;
    return cudaMalloc(&place, (size_t)bytes) == 0 ? place : NULL;
}

void give(void *place, ptrdiff_t bytes, int device, void *stream)
{
    (void)bytes, (void)device, (void)stream;
    cudaFree(place);
}
"""
OTHER = """
    import sys, torch, oomph
    from torch.cuda.memory import CUDAPluggableAllocator, change_current_allocator
    other = CUDAPluggableAllocator(sys.argv[1], "take", "give")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with two functions, as RMM has them for PyTorch."""
    folder = tmp_path_factory.mktemp("other")
    (folder / "other.c").write_text(ALLOCATOR)
    built = folder / "libother.so"
    command = ["cc", "-shared", "-fPIC", "-o", built, folder / "other.c"]
    subprocess.run(command, check=True)
    return built


def test_oomph_is_not_put_in_the_place_of_another_allocator(library: Path):
    found = run(
        OTHER
        + """
    change_current_allocator(other)
    try:
        oomph.install()
    except RuntimeError as error:
        print(error)
    print(oomph.is_installed(), torch.ones(3, device="cuda").sum().item())
    """,
        library,
        card=CARD,
    )
    assert "another allocator (pluggable) has replaced PyTorch's" in found.out
    assert "torch.cuda.MemPool" in found.out
    assert found.out.endswith("False 3.0\n")


def test_another_allocator_in_the_place_of_oomph_is_reported(library: Path):
    found = run(
        OTHER
        + """
    change_current_allocator(other)
    print(oomph.is_installed(), torch.ones(3, device="cuda").sum().item())
    """,
        library,
        card=CARD,
        conf=CONF,
    )
    assert len(lines(found.err, "another allocator (pluggable) has replaced it")) == 1
    assert found.out == "False 3.0\n"


def test_once_cuda_is_in_use_no_other_can_take_the_place_of_oomph(library: Path):
    found = run(
        OTHER
        + """
    tensor = torch.ones(3, device="cuda")
    try:
        change_current_allocator(other)
    except RuntimeError as error:
        print(error)
    print(oomph.is_installed(), tensor.sum().item())
    """,
        library,
        card=CARD,
        conf=CONF,
    )
    assert found.out.splitlines()[0].startswith("Can't swap an already initialized")
    assert found.out.endswith("True 3.0\n")


# ---- torch_memory_saver

SAVER = """
    import os, sys, torch, oomph
    from torch_memory_saver import torch_memory_saver as saver

    def free_mib():
        return torch.cuda.mem_get_info()[0] >> 20

    saver.hook_mode = sys.argv[1]
    with saver.region(enable_cpu_backup=True):
        tensor = torch.full((100 << 20,), 7, dtype=torch.uint8, device="cuda")
    place, before = tensor.data_ptr(), free_mib()
    saver.pause()
    freed = free_mib() - before
    saver.resume()
    same = tensor.data_ptr() == place and bool((tensor == 7).all())
    print(torch.cuda.get_allocator_backend(), freed, same, flush=True)
    os._exit(0)  # the library ends the process at the end of its own region
"""


@needs("torch_memory_saver")
def test_torch_memory_saver_pauses_what_is_in_its_pool():
    found = run(SAVER, "torch", card=CARD, conf=CONF)
    assert found.out == "oomph 100 True\n"


@needs("torch_memory_saver")
def test_torch_memory_saver_before_cudamalloc_is_told_that_it_sees_nothing():
    import oomph

    hook = "torch_memory_saver_hook_mode_preload_cu13.abi3.so"
    preloaded = Path(folder_of("torch_memory_saver")).parent / hook
    found = run(
        SAVER,
        "preload",
        card=CARD,
        conf=CONF,
        anew=True,
        LD_PRELOAD=str(preloaded),
        LD_LIBRARY_PATH=str(Path(oomph.__file__).parent / "_sim"),
    )
    assert found.out == "oomph 0 True\n", found.err
    assert len(lines(found.err, "intercepts cudaMalloc")) == 1


def test_without_such_a_library_nothing_is_said():
    found = run(
        "import torch; torch.zeros(1, device='cuda')", card=CARD, conf=CONF, anew=True
    )
    assert found.code == 0 and found.said == ""
