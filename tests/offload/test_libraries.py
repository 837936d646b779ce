"""What libraries beside PyTorch's own are given, and what is kept from them."""

from __future__ import annotations

import pytest
import torch
from support import MIB, Simulated, run

# ---- Workspaces of cuBLAS

tight = Simulated("512MiB,context=0", "reserve:128MiB,host_limit:2GiB,host_ahead:0")


def workspace_bytes() -> int:
    """The size of one, by making it."""
    before = torch.cuda.memory_allocated()
    multiply()
    made = torch.cuda.memory_allocated() - before
    torch._C._cuda_clearCublasWorkspaces()
    assert made > MIB
    return made


def multiply() -> None:
    a = torch.empty(16, 16, device="cuda")
    torch.mm(a, a)


def take(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


@tight
def test_tensors_of_the_size_of_a_workspace_leave_the_reserve_free():
    import oomph

    size = workspace_bytes()
    kept = [take(size) for _ in range(2 * (512 * MIB) // size)]
    assert oomph.stats()["rescues"] > 0
    free_bytes, _ = torch.cuda.mem_get_info()
    assert free_bytes >= 128 * MIB
    del kept


@tight
def test_a_workspace_made_when_memory_is_short_lies_on_the_device():
    import oomph

    size = workspace_bytes()
    kept = [take(size) for _ in range(2 * (512 * MIB) // size)]
    rescued = oomph.stats()["rescues"]
    free_bytes, _ = torch.cuda.mem_get_info()
    multiply()
    assert oomph.stats()["rescues"] == rescued
    assert torch.cuda.mem_get_info()[0] < free_bytes
    del kept


# ---- NCCL's registration of all memory

GROUP = """
    import os, torch
    import torch.distributed as dist

    def make_group():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
"""
HOOK = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
CARD = "1GiB"


def in_a_group(code: str, **options: str):
    return run(GROUP + code, card=CARD, **options)


@pytest.mark.long
def test_natively_nccl_is_told_of_all_memory_if_that_is_wanted():
    found = in_a_group("    make_group()", TORCH_CPP_LOG_LEVEL="INFO", **{HOOK: "1"})
    assert f"{HOOK}: 1" in found.err


@pytest.mark.long
def test_nccl_is_not_told_of_memory_whose_pages_are_exchanged():
    found = in_a_group(
        "    make_group()",
        conf="offload:on-oom",
        TORCH_CPP_LOG_LEVEL="INFO",
        **{HOOK: "1"},
    )
    assert f"{HOOK}: 0" in found.err, found.err
    assert f"{HOOK}: 1" not in found.err
    assert f"{HOOK} is switched off" in found.err


def test_the_older_name_of_the_variable_is_known():
    found = in_a_group(
        "    make_group()",
        conf="offload:on-oom",
        TORCH_CPP_LOG_LEVEL="INFO",
        NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK="yes",
    )
    assert f"{HOOK}: 0" in found.err
    assert "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK is switched off" in found.err


def test_a_variable_that_is_off_is_not_spoken_of():
    found = in_a_group("    make_group()", conf="offload:on-oom", **{HOOK: "0"})
    assert "switched off" not in found.err


def test_what_nccl_would_register_is_not_told_if_that_is_wanted_after_install():
    found = in_a_group(
        f"""
    os.environ["{HOOK}"] = "1"
    make_group()
    os.environ["{HOOK}"] = "0"
    try:
        torch.cuda.memory_snapshot()
    except RuntimeError as error:
        print("refused:", error)
    print(len(torch.cuda.MemPool().snapshot()), "segments in a pool")
    """,
        conf="offload:on-oom",
    )
    assert f"refused: oomph: {HOOK} was set" in found.out, found.err
    assert "0 segments in a pool" in found.out
