"""What is large between small tensors: some rows at a time, or fused."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F
from forecasts import peak_bytes, predicted, text_within
from oomph.diagnosis import forecast
from support import Simulated
from torch import nn
from torch.utils.checkpoint import checkpoint

forecast.SECONDS_IN_ALL = math.inf
card = Simulated("8GiB,context=0", "offload:off,reserve:0,error:full")


def triplets(anchors: torch.Tensor, all_of: torch.Tensor) -> torch.Tensor:
    distances = torch.cdist(anchors, all_of)
    terms = distances.unsqueeze(2) - distances.unsqueeze(1) + 0.2
    return F.relu(terms).sum()


def train(chunks: int) -> None:
    model = nn.Linear(64, 16, device="cuda")
    for _ in range(2):
        y = model(torch.ones(384, 64, device="cuda"))
        if chunks == 1:
            loss = triplets(y, y)
        else:
            parts = y.chunk(chunks)
            loss = sum(checkpoint(triplets, p, y, use_reentrant=False) for p in parts)
        loss.backward()


@card
def test_a_loss_of_all_triplets_is_enough_in_as_many_chunks_as_are_said():
    text = predicted(lambda: train(1), 0.5)
    found = re.search(r"\[384, 384, 384\] of .* in (\d+) chunks.*", text)
    assert found, text
    assert "(" not in found[0].partition("cost")[2], text  # it is enough
    assert text_within(0.5 * peak_bytes(lambda: train(1)), lambda: train(1))
    assert not text_within(
        0.5 * peak_bytes(lambda: train(1)), lambda: train(int(found[1]))
    )


class Attention(nn.Module):
    """Scores by hand, or fused; their bias may be learned."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.qkv = nn.Linear(256, 768)
        self.bias = nn.Parameter(torch.zeros(4, 512, 512))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(x).view(*x.shape[:2], 3, 4, 64).permute(2, 0, 3, 1, 4)
        q, k, v = parts
        if self.way == "fused":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mask = torch.ones(512, 512, dtype=torch.bool, device="cuda").triu(1)
        if self.way in ("masked", "fused with masks"):  # lengths differ
            mask = mask | torch.zeros(len(x), 1, 1, 512, dtype=torch.bool).cuda()
        if self.way == "fused with masks":
            return F.scaled_dot_product_attention(q, k, v, ~mask, 0.1)
        scores = (q @ k.transpose(2, 3) / 8).masked_fill(mask, -math.inf)
        if self.way == "biased":
            scores = scores + self.bias
        if self.way == "ordered":
            scores = scores.sort().values
        weights = F.dropout(scores.softmax(-1), 0.1)
        if self.way == "kept":
            self.weights = weights
        return weights @ v


def attend(way: str) -> None:
    model = nn.ModuleList(Attention(way) for _ in range(3)).cuda()
    for _ in range(2):
        x = torch.ones(8, 512, 256, device="cuda")
        for layer in model:
            x = x + layer(x).transpose(1, 2).flatten(2)
        x.sum().backward()


@pytest.mark.parametrize(
    ("way", "fast", "within"),
    [("by hand", "fused", 0.1), ("masked", "fused with masks", 0.15)],
)
@card
def test_attention_by_hand_is_enough_if_it_is_fused(way, fast, within):
    fraction = 0.6
    text = predicted(lambda: attend(way), fraction)
    found = re.search(r"([\d.]+) MiB  torch.*scaled_dot_product_attention.*", text)
    assert found, text
    assert "(not enough" not in found[0], text
    assert "(unknown" not in found[0], text
    fused = peak_bytes(lambda: attend(fast))
    true = peak_bytes(lambda: attend(way))
    print(true / 2**20, fused / 2**20, found[1])
    assert float(found[1]) == pytest.approx((true - fused) / 2**20, rel=within)
    assert not text_within(fraction * true, lambda: attend(fast))


@card
@pytest.mark.parametrize("way", ["biased", "ordered", "kept"])
def test_attention_that_no_kernel_has_is_not_to_be_fused(way):
    text = predicted(lambda: attend(way), 0.5)
    assert "scaled_dot_product" not in text


@card
@pytest.mark.parametrize("way", ["returned", "along rows", "crossed"])
def test_what_is_wanted_whole_or_mixes_rows_is_in_no_chunks(way):
    def compute() -> torch.Tensor:
        x = torch.ones(8192, 16, device="cuda")
        far = torch.cdist(x, x)
        if way == "along rows":
            return far.softmax(0).sum()
        if way == "crossed":
            return (far + far.t()).sum()
        return far * 2

    text = predicted(compute, 0.6)
    assert not re.search(r"in \d+ chunks", text)
