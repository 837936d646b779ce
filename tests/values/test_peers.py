"""Copies from one simulated device to another bring every element, however it lies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support import MIB, Simulated

CARD = "256MiB,context=0,memory=values,devices=2"
native = Simulated(CARD, None)
roomy = Simulated(CARD, "reserve:0,offload:off")

Layout = Callable[[torch.Tensor], torch.Tensor]
LAYOUTS: dict[str, Layout] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "every other": lambda x: x[::2, 1::3],
    "a part": lambda x: x[3:9, :, 5:17],
    "expanded": lambda x: x[:, :1].expand(-1, 11, -1),
    "channels last": lambda x: x.unsqueeze(0).to(memory_format=torch.channels_last),
    "one element": lambda x: x[7, 3, 2],
    "none": lambda x: x[:0],
}


def source(device: str) -> torch.Tensor:
    return torch.arange(20 * 24 * 28, dtype=torch.float32, device=device).view(
        20, 24, 28
    )


def check_copies_to_the_other(name: str) -> None:
    layout = LAYOUTS[name]
    wanted = layout(source("cpu"))
    for here, there in (("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")):
        original = layout(source(here))
        moved = original.to(there)
        assert moved.device == torch.device(there)
        assert torch.equal(moved.cpu(), wanted)
        assert torch.equal(original.to(there, torch.float64).cpu(), wanted.double())
        assert torch.equal(original.to(there, non_blocking=True).cpu(), wanted)


def check_copies_into_what_is_there(name: str) -> None:
    into = LAYOUTS[name]
    for here, there in (("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")):
        whole, expected = source(there), source("cpu")
        shape = into(expected).shape
        count = into(expected).numel()
        values = torch.arange(count, dtype=torch.float32).view(shape[::-1]) + 0.5
        into(whole).copy_(values.to(here).permute(*reversed(range(len(shape)))))
        into(expected).copy_(values.permute(*reversed(range(len(shape)))))
        assert torch.equal(whole.cpu(), expected)  # and nothing beside it changed


@pytest.mark.parametrize("layout", LAYOUTS)
@native
def test_pytorchs_allocator_lets_tensors_travel_between_devices(layout):
    check_copies_to_the_other(layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@roomy
def test_oomph_lets_tensors_travel_between_devices(layout):
    check_copies_to_the_other(layout)


TARGETS = ["contiguous", "transposed", "every other", "a part"]


@pytest.mark.parametrize("layout", TARGETS)
@native
def test_pytorchs_allocator_lets_a_copy_fill_a_strided_place_elsewhere(layout):
    check_copies_into_what_is_there(layout)


@pytest.mark.parametrize("layout", TARGETS)
@roomy
def test_oomph_lets_a_copy_fill_a_strided_place_elsewhere(layout):
    check_copies_into_what_is_there(layout)


@roomy
def test_a_copy_waits_for_the_work_of_the_other_device():
    wanted = torch.arange(MIB, dtype=torch.float32)
    x = wanted.to("cuda:0")
    for _ in range(10):
        x = (x * 1.5).flip(0)
        wanted = (wanted * 1.5).flip(0)
    y = x.view(1024, 1024).t().to("cuda:1") + 1
    assert torch.equal(y.cpu(), wanted.view(1024, 1024).t() + 1)


@roomy
def test_later_work_of_the_source_waits_for_a_copy():
    wanted = torch.rand(512, 512)
    x = wanted.to("cuda:0")
    y = x.t().to("cuda:1", non_blocking=True)
    x.zero_()
    assert torch.equal(y.cpu(), wanted.t())
