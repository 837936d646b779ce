"""Steps that decide by values of data: what came from the CPU is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from forecasts import peak_bytes, predicted, step_bytes, text_within
from oomph.diagnosis import forecast
from support import Simulated
from torch import nn

forecast.SECONDS_IN_ALL = math.inf
card = Simulated("1GiB,context=0,memory=values", "offload:off,reserve:0,error:full")
ROWS, WIDTH, LAYERS = 16384, 256, 8  # 16 MiB a layer
Data = Callable[[], torch.Tensor]


class Net(nn.Module):
    """Saves more where its mask hides something."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hides = not bool(mask.sum() == mask.numel())
        for layer in self.layers:
            x = layer(x).relu()
            if hides:
                x = x * mask[:, None] * 0.5
        return x.square().mean()


def train(data: Data, change: Callable[[torch.Tensor], object] = bool) -> None:
    model = Net().cuda()
    for _ in range(3):
        x, mask = torch.randn(ROWS, WIDTH), data()
        mask = mask.to("cuda", non_blocking=True)
        change(mask[0])
        model(x.cuda(), mask).backward()
        model.zero_grad()


def full() -> torch.Tensor:
    return torch.ones(ROWS, dtype=torch.bool)


def padded() -> torch.Tensor:
    return torch.arange(ROWS) < ROWS // 2


@pytest.mark.long
@pytest.mark.parametrize("data", ["full", "padded"])
@card
def test_a_mask_of_the_data_decides_as_it_does(data):
    predicted(lambda: train({"full": full, "padded": padded}[data]), within=0.005)


@pytest.mark.long
@card
def test_two_masks_of_the_same_shape_come_to_different_peaks():
    assert peak_bytes(lambda: train(padded)) > 1.1 * peak_bytes(lambda: train(full))


@pytest.mark.long
@card
def test_what_is_written_to_a_part_is_seen_in_the_whole():
    """The first element is hidden through a view of it."""
    predicted(lambda: train(full, lambda first: first.zero_()), within=0.005)


@pytest.mark.long
@card
def test_what_something_unknown_writes_is_not_known_any_more():
    """Then it is guessed that all are chosen, which is less than it comes to."""

    def hide(first: torch.Tensor) -> None:
        first.copy_(torch.randn((), device="cuda") > 9)

    true = peak_bytes(lambda: train(full, hide))
    text = text_within(0.6 * true, lambda: train(full, hide))
    assert step_bytes(text) < true


@pytest.mark.long
@card
def test_rows_that_a_known_mask_chooses_are_counted():
    def step() -> None:
        model = nn.Linear(WIDTH, 16 * WIDTH).cuda()
        for _ in range(3):
            x = torch.randn(ROWS, WIDTH, device="cuda")
            lengths = torch.arange(ROWS).cuda()
            chosen = x[lengths % 5 == 0]
            places = (lengths < 100).nonzero().flatten()
            (model(chosen).square().mean() + model(x[places]).mean()).backward()
            model.zero_grad()

    text = predicted(step, fraction=0.5, within=0.005)
    assert "between" not in text


@card
def test_a_list_of_lengths_is_that_of_the_data():
    def step() -> None:
        model = nn.Linear(WIDTH, 4 * WIDTH).cuda()
        for _ in range(3):
            lengths = torch.tensor([100, 700, 1000], device="cuda")
            parts = [torch.randn(n, WIDTH, device="cuda") for n in lengths.tolist()]
            sum(model(part).square().mean() for part in parts).backward()
            model.zero_grad()

    predicted(step, within=0.005)


@pytest.mark.long
@card
def test_no_library_sees_that_it_is_traced():
    """What some of them do then takes other memory."""

    def step() -> None:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        for _ in range(3):
            x = torch.randn(ROWS, WIDTH, device="cuda")
            is_traced = isinstance(x, torch._subclasses.FakeTensor)
            for _ in range(8 if is_traced else 2):
                x = model(x).relu()
            x.mean().backward()
            model.zero_grad()

    predicted(step, within=0.005)


@pytest.mark.long
@card
def test_what_is_drawn_into_a_known_mask_is_not_known():
    true = peak_bytes(lambda: train(full, lambda first: first.bernoulli_(0.0)))
    text = text_within(
        0.6 * true, lambda: train(full, lambda first: first.bernoulli_(0.0))
    )
    assert step_bytes(text) < true  # it is guessed that all are chosen


@card
def test_memory_that_others_see_is_not_written():
    """Though what would be written is known; the step stays the same."""
    shared = torch.full((ROWS,), 7, dtype=torch.long).share_memory_()
    seen: list[int] = []

    def step() -> None:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        x = torch.randn(ROWS, WIDTH, device="cuda")
        for turn in range(3):
            seen.append(int(shared[0]))
            number = torch.tensor([turn]).cuda()
            model(model(model(x))).square().mean().backward()
            shared.copy_(number.expand(ROWS))
            model.zero_grad()

    true = peak_bytes(step)
    del seen[:]
    shared.fill_(7)
    text = text_within(0.6 * true, step)
    assert text is not None and shared.eq(7).all(), (seen, text)
