"""Workspaces of cuBLAS that were taken on a full device."""

import threading

import torch
from support import MIB, Simulated
from torch import nn

card = Simulated(
    "384MiB,context=0,host=8GiB", "reserve:0,host_limit:4GiB,recompute:off"
)


def use_of_steps() -> list[int]:
    """Bytes used on host pages in each step of a training; the first is short."""
    import oomph

    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(16))).cuda()
    used = []
    for _ in range(6):
        model(torch.randn(8192, 1024, device="cuda")).sum().backward()
        oomph.step()
        model.zero_grad()
        used.append(oomph.stats()["step_host_used_bytes"])
    assert used[0] > 0
    return used


@card
def test_they_are_taken_once_more_when_there_is_room():
    used = use_of_steps()
    assert used[3:] == [0, 0, 0], used


@card
def test_they_stay_while_another_thread_may_use_one():
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    try:
        used = use_of_steps()
    finally:
        ended.set()
        other.join()
    assert 0 < used[-1] <= 64 * MIB, used
