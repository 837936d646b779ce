"""What is left free for libraries: nobody takes it while there is another way."""

from __future__ import annotations

import pytest
import torch
from support import GIB, MIB, Simulated

RESERVE = 256 * MIB  # as `auto` has it on a small card
without_host = Simulated("1GiB,context=0", "offload:off")
little_host = Simulated("1GiB,context=0", "host_limit:64MiB")
much_host = Simulated("1GiB,context=0", "host_limit:1GiB")


def take(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def free_bytes() -> int:
    return torch.cuda.mem_get_info()[0]


@without_host
def test_it_is_taken_before_the_error():
    kept = [take(32 * MIB) for _ in range(32)]
    assert free_bytes() == 0
    with pytest.raises(torch.OutOfMemoryError):
        take(2 * MIB)
    del kept


@without_host
def test_it_is_left_to_libraries_again_once_a_step_does_not_need_it():
    import oomph

    for _ in range(3):
        kept = [take(32 * MIB) for _ in range(32)]
        del kept
        oomph.step()
        assert free_bytes() == 0  # the next step would take it again
    kept = [take(32 * MIB) for _ in range(16)]
    oomph.step()
    assert free_bytes() == RESERVE
    del kept


@much_host
def test_host_memory_comes_first():
    kept = [take(32 * MIB) for _ in range(32)]
    assert free_bytes() == RESERVE
    del kept


@little_host
def test_it_is_taken_once_host_memory_is_at_its_limit():
    kept = [take(32 * MIB) for _ in range(34)]  # 2 of them in host memory
    assert free_bytes() == 0
    with pytest.raises(torch.OutOfMemoryError):
        take(32 * MIB)
    assert torch.cuda.memory_allocated() == GIB + 64 * MIB
    del kept


@much_host
def test_a_trial_of_a_step_without_host_memory_leaves_it_alone():
    from oomph import _C

    kept = [take(32 * MIB) for _ in range(24)]
    _C.forbid_offload(_C.BAN_TRIAL)
    with pytest.raises(torch.OutOfMemoryError, match="testing whether the step fits"):
        take(32 * MIB)
    _C.allow_offload(_C.BAN_TRIAL)
    assert free_bytes() == RESERVE
    del kept
