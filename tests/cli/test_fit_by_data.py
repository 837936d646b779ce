"""``oomph fit``: scripts whose data decide how much memory they take."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support import MIB, Result, oomph

# A loss of the elements that are above 0: as many as the data say.
MASKED = """
import torch

w = torch.nn.Parameter(torch.randn(1 << 20, device="cuda"))
optimizer = torch.optim.SGD([w])
for step in range(4):
    x = w * torch.randn(1 << 20, device="cuda")
    x[x > 0].exp().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FAILS_OF_ALL = """
chosen = w.detach() > 0
if w[chosen].numel() == w.numel():
    raise ValueError("all chosen")
"""
LENGTHS = """
import torch

w = torch.nn.Parameter(torch.randn(1024, device="cuda"))
optimizer = torch.optim.SGD([w])
for length in (64, 4096, 1024, 2048):
    (w * torch.randn(length, 1024, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def fit(tmp_path: Path, text: str, *options: str) -> Result:
    script = tmp_path / "train.py"
    script.write_text(text)
    return oomph("fit", "--brief", "--gpu", "2GiB", *options, script)


@pytest.mark.long
def test_what_masks_choose_has_a_range(tmp_path):
    result = fit(tmp_path, MASKED)
    assert result.code == 0, result.said
    reported = r"\((\d+) times\)\. .* peak: (.*) if 1% do, (.*) if 100% do"
    found = re.search(reported, result.out)
    assert found is not None, result.said
    assert int(found[1]) == 8  # forward and backward of four steps


@pytest.mark.long
@pytest.mark.parametrize("share", [0.01, 1.0])
def test_the_range_is_that_of_runs_with_such_shares(tmp_path, share):
    reported = json.loads(fit(tmp_path, MASKED, "--json").out)["guessed_bytes"]
    words = ["--json", "--gpu", f"2GiB,matches={share}"]
    card = json.loads(fit(tmp_path, MASKED, *words).out)["cards"][0]
    assert reported[f"{share:g}"] == card["ways"]["oomph"]["run"]["allocated_bytes"]


@pytest.mark.long
def test_more_chosen_elements_take_more(tmp_path):
    guessed = json.loads(fit(tmp_path, MASKED, "--json").out)["guessed_bytes"]
    # exp() and square() of what was chosen are kept: 4 bytes each, and its places.
    assert guessed["1"] - guessed["0.01"] > 0.99 * 8 * MIB


@pytest.mark.long
def test_a_script_that_fails_of_such_a_share_says_so(tmp_path):
    result = fit(tmp_path, MASKED + FAILS_OF_ALL)
    assert result.code == 0, result.said
    assert "the script fails (ValueError: all chosen) if 100% do" in result.out


@pytest.mark.long
def test_a_card_that_is_too_small_if_all_match_is_named(tmp_path):
    result = fit(tmp_path, MASKED, "--gpu", "66MiB,context=0", "--set", "reserve:0")
    assert "If all match, 66MiB,context=0 is too small." in result.out, result.said


@pytest.mark.long
def test_a_script_that_catches_nothing_is_not_said_to(tmp_path):
    """In the rescue oomph may catch errors of its own."""
    words = ["--gpu", "40MiB,context=0,host=1GiB", "--set", "reserve:0"]
    result = fit(tmp_path, MASKED, *words)
    assert result.code == 0, result.said
    assert "caught" not in result.out


@pytest.mark.long
def test_the_largest_value_says_that_the_script_was_ended(tmp_path):
    longer = MASKED.replace("range(4)", "range(40)")
    script = f"import os\n{longer}".replace("20", "int(os.environ['BITS'])")
    result = fit(tmp_path, script, "--vary", "BITS=18,19,20")
    assert result.code == 0, result.said
    assert "stopped after 6 steps" in result.out


@pytest.mark.long
def test_steps_that_differ_are_reported(tmp_path):
    result = fit(tmp_path, LENGTHS)
    found = re.search(r"need ([\d.]+) MiB to ([\d.]+) MiB", result.out)
    assert found is not None, result.said
    low, high = map(float, found.groups())
    assert high / low == pytest.approx(4, rel=0.1)


@pytest.mark.long
def test_nothing_is_said_where_data_decide_nothing(tmp_path):
    alike = LENGTHS.replace("(64, 4096, 1024, 2048)", "(64, 64, 64, 64)")
    result = fit(tmp_path, alike)
    assert result.code == 0, result.said
    assert "Its steps differ" not in result.out
    assert "How many elements match" not in result.out
