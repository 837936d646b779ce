"""What libraries beside PyTorch's own are given, and what they are not told."""

from __future__ import annotations

import torch
from support import MIB, Simulated

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
