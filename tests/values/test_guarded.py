"""Training under guard gives the CPU's values, and what nobody wrote is NaN."""

from __future__ import annotations

import pytest
import torch
from support import MIB, Simulated
from test_limits import Training, assert_like_cpu

CARD = "context=0,memory=values,cc=8.6,host=4GiB"
COMMON = "reserve:0,host_ahead:0,host_limit:1GiB"
FEW, MANY = 4096, 16384  # rows of a batch: many do not fit a card that is small
GUARDS = ("unmap", "sync", "fill", "sync+fill")
cards, small_cards = (
    {guard: Simulated(f"{size},{CARD}", f"{COMMON},guard:{guard}") for guard in GUARDS}
    for size in ("256MiB", "128MiB")
)
fill, unmap_and_fill, off = (
    Simulated("64MiB,context=0,memory=values", conf)
    for conf in ("guard:fill", "guard:unmap+fill", "guard:off")
)


def train(guard: str, rows: int) -> None:
    import oomph

    training = Training("cuda")
    sizes = [rows] * (2 if rows == MANY else 3)
    for size in sizes:
        training.step(size)
    assert_like_cpu(training, sizes, skipped=0)
    stats = oomph.stats()
    assert (stats["guard_blocks"] > 100) == (guard != "fill")
    assert stats["guard_reused_bytes"] == 0
    assert (stats["rescues"] > 0) == (rows == MANY)


@pytest.mark.long
@pytest.mark.parametrize("guard", GUARDS)
def test_training_gives_the_cpus_values(guard):
    cards[guard].call(__name__, "train", guard, FEW)


@pytest.mark.long
@pytest.mark.parametrize("guard", ["fill", "unmap"])
def test_training_with_rescues_gives_the_cpus_values(guard):
    small_cards[guard].call(__name__, "train", guard, MANY)


DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def assert_empty_is_nan() -> None:
    for dtype in DTYPES:
        for count in (100, MIB):
            for _ in range(2):
                block = torch.empty(count, dtype=dtype, device="cuda")
                assert block.cpu().isnan().all(), (dtype, count)
                block.fill_(1)


@fill
def test_what_was_never_written_is_nan():
    assert_empty_is_nan()


@unmap_and_fill
def test_with_unmap_too():
    assert_empty_is_nan()


@fill
def test_what_was_freed_is_nan():
    block = torch.ones(1000, device="cuda")
    stale = torch.as_tensor(Stale(block), device="cuda")
    del block
    assert stale.cpu().isnan().all()


class Stale:
    """Gives a tensor away without keeping its memory alive."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": "<f4",
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


@off
def test_without_guard_it_is_what_it_was():
    block = torch.ones(1000, device="cuda")
    stale = torch.as_tensor(Stale(block), device="cuda")
    del block
    assert (stale.cpu() == 1).all()
