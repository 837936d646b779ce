"""Steps in which a mask chooses rows: what is predicted, and what is not known."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F
from forecasts import peak_bytes, predicted, step_bytes, text_within
from oomph.base.sizes import parse_size
from oomph.diagnosis import forecast
from support import Simulated
from torch import nn

forecast.SECONDS_IN_ALL = math.inf
card = Simulated("1GiB,context=0,memory=values", "offload:off,reserve:0,error:full")
shapes = Simulated("1GiB,context=0", "offload:off,reserve:0,error:full")
ROWS, WIDTH, WORDS = 1024, 512, 4096  # blocks below 1 MiB have no line


class Masked(nn.Module):
    """Predicts the words that a mask hides."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        chosen = x[hidden]
        scores = self.head(chosen)
        words = torch.zeros(len(chosen), dtype=torch.long, device="cuda")
        return F.cross_entropy(scores, words)


def train(layers: int = 4, share: int = 4, rows: int = ROWS) -> None:
    model = Masked(layers).cuda()
    x = torch.ones(rows, WIDTH, device="cuda")
    hidden = torch.arange(rows, device="cuda") % share == 0
    for _ in range(2):
        model(x, hidden).backward()
        model.zero_grad()


@pytest.mark.long
@card
def test_the_step_that_failed_tells_how_many_rows_a_mask_chose():
    text = predicted(lambda: train(rows=4 * ROWS), fraction=0.85, within=0.01)
    assert "is unknown" not in text


def span_of(text: str | None) -> tuple[int, int]:
    """What the error says that a step takes at least, and at most."""
    assert text is not None
    span = r"needs between ([\d.]+ \w+) and ([\d.]+ \w+), depending on how many"
    found = re.search(span, text)
    assert found, text
    least, most = (parse_size(found[i].replace(" ", "")) for i in (1, 2))
    return least, most


@pytest.mark.long
@card
def test_before_a_mask_chose_it_is_known_between_what_a_step_needs():
    def step() -> None:
        train(layers=40, share=8, rows=4 * ROWS)

    true = peak_bytes(step)
    text = str(text_within(0.3 * true, step))
    least, most = span_of(text)
    assert 0.99 * least <= true <= 1.01 * most, (true, text)


class Experts(nn.Module):
    """Each row goes to two of some experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(256, 8)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
            for _ in range(8)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            y[rows] += weights[rows, places, None] * expert(x[rows])
        return y


@pytest.mark.long
@card
def test_experts_share_the_rows_that_masks_choose_for_them():
    """Were each taken to have all rows, a step would come to several times as much."""

    def step() -> None:
        model = nn.Sequential(Experts(), Experts()).cuda()
        x = torch.randn(4 * ROWS, 256, device="cuda")
        for _ in range(2):
            model(x).square().mean().backward()
            model.zero_grad()

    true = peak_bytes(step)
    text = text_within(0.4 * true, step)
    least, most = span_of(text)
    assert 0.9 * true <= least <= true <= 1.02 * most
    assert most <= 1.2 * true


@pytest.mark.long
@card
def test_a_mask_chooses_no_more_rows_than_were_written_to_it():
    """As samplers of detectors do: so many of those that a comparison finds."""

    def step() -> None:
        model = nn.Linear(64, 4096).cuda()
        x = torch.randn(16 * ROWS, 64, device="cuda")
        for _ in range(2):
            found = torch.where(x[:, 0] > 0)[0]
            sampled = torch.zeros(len(x), dtype=torch.uint8, device="cuda")
            sampled[found[: min(len(found), 1024)]] = 1
            model(x[torch.where(sampled)[0]]).square().mean().backward()
            model.zero_grad()

    true = peak_bytes(step)
    text = text_within(0.7 * true, step)
    assert re.search(r"needs (about|between)", str(text)), text
    most = step_bytes(text) if "needs about" in str(text) else span_of(text)[1]
    assert most == pytest.approx(true, rel=0.02)


@pytest.mark.long
@card
def test_masks_of_a_little_do_not_matter():
    def step() -> None:
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(24))).cuda()
        x = torch.ones(4 * ROWS, 512, device="cuda")
        for _ in range(2):
            y = model(x)
            loss = y.square().mean(-1)
            loss[loss > 0].mean().backward()
            model.zero_grad()

    true = peak_bytes(step)
    text = text_within(0.4 * true, step)
    assert step_bytes(text) == pytest.approx(true, rel=0.02)


@pytest.mark.long
@shapes
def test_boxes_that_stay_are_not_known_either_and_do_not_matter():
    from torchvision.ops import nms

    def step() -> None:
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(24))).cuda()
        x = torch.ones(4 * ROWS, 512, device="cuda")
        for _ in range(2):
            y = model(x)
            stay = nms(y[:, :4].detach(), y[:, 4].detach(), 0.5)
            y.square().mean(-1)[stay].mean().backward()
            model.zero_grad()

    true = peak_bytes(step)
    text = text_within(0.4 * true, step)
    assert step_bytes(text) == pytest.approx(true, rel=0.03)


@pytest.mark.long
@pytest.mark.parametrize("how", ["masked_select", "nonzero"])
@card
def test_other_operators_that_choose_do_so_too(how):
    def step() -> None:
        model = nn.Linear(16, 16).cuda()
        x = torch.ones(1 << 20, 16, device="cuda")
        hidden = torch.arange(1 << 20, device="cuda") % 4 == 0
        for _ in range(2):
            y = model(x)
            if how == "nonzero":
                rows = hidden.nonzero().squeeze(1)
                chosen = y[rows]
            else:
                chosen = y.masked_select(hidden[:, None])
            chosen.exp().square().mean().backward()
            model.zero_grad()

    predicted(step, fraction=0.85, within=0.05)
