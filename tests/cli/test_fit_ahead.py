"""``oomph fit`` knows what batches that are still to come in an epoch will need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from oomph.fitting.process import ahead
from support import MIB, Result, oomph

# Steps of 0.2 s, of which only a few are seen; rows of 1 MiB, 4 of them at most held.
TRAIN = """
import os, time
import torch
from torch.utils.data import DataLoader, Dataset

LENGTHS = ORDER

class Texts(Dataset):
    def __len__(self): return len(LENGTHS)
    def __getitem__(self, place): return torch.zeros(LENGTHS[place], 1)

if __name__ == "__main__":
    w = torch.nn.Parameter(torch.zeros(1, 1 << 18, device="cuda"))
    optimizer = torch.optim.SGD([w])
    for epoch in range(2):
        for text in DataLoader(Texts(), 1, num_workers=WORKERS):
            (text[0].cuda() * w).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.2)
"""
SORTED = TRAIN.replace("ORDER", "range(1, 401)")
ONE = TRAIN.replace("ORDER", "[8 + i % 4 for i in range(200)] + [400] + [9] * 199")
LATE = TRAIN.replace("ORDER", "[8] * 200 + [400] * 200")
ALIKE = TRAIN.replace("ORDER", "[8] * 400")
LARGEST = 400 * MIB


def fit(tmp_path: Path, code: str, *options: str, workers: int = 0) -> Result:
    script = tmp_path / "train.py"
    script.write_text(code.replace("WORKERS", str(workers)))
    return oomph("fit", "--brief", "--gpu", "2GiB", *options, script)


def native(result: Result) -> dict[str, Any]:
    """The run with PyTorch's allocator, which is told what to run."""
    assert result.code == 0, result.said
    found: dict[str, Any] = json.loads(result.out)["cards"][0]["ways"]["native"]["run"]
    return found


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("code", [SORTED, ONE, LATE], ids=["sorted", "one", "late"])
def test_the_largest_batch_of_an_epoch_is_run(tmp_path, code, workers):
    found = native(fit(tmp_path, code, "--json", workers=workers))
    assert found["allocated_bytes"] >= LARGEST


@pytest.mark.long
def test_it_is_told_which_batches_were_looked_at(tmp_path):
    said = fit(tmp_path, SORTED).out
    assert "the sizes of all of the 394 batches still to come in the epoch" in said
    assert "more are larger than those before them" in said


@pytest.mark.long
def test_batches_that_are_alike_run_in_their_order(tmp_path):
    found = native(fit(tmp_path, ALIKE, "--json"))
    assert (found["steps"], found["ahead"]) == (6, [])
    assert found["allocated_bytes"] < LARGEST / 2


@pytest.mark.long
def test_so_many_steps_as_are_asked_for_run_in_their_order(tmp_path):
    found = native(fit(tmp_path, SORTED, "--json", "--steps", "6"))
    assert (found["steps"], found["ahead"]) == (6, [])


@pytest.mark.long
def test_data_that_can_be_read_once_are_left_alone(tmp_path):
    read = "return torch.zeros(LENGTHS[place], 1)"
    once = f"global last; assert place == last + 1; last = place; {read}"
    code = SORTED.replace(read, once).replace("LENGTHS =", "last = -1; LENGTHS =", 1)
    result = fit(tmp_path, code.replace("range(2)", "range(1)"), "--seconds", "100")
    assert result.code in (0, 3), result.said


@pytest.mark.long
def test_each_value_has_batches_of_its_own(tmp_path):
    code = SORTED.replace("w = ", "width = int(os.environ['WIDTH']); w = ")
    code = code.replace("1 << 18", "width << 18")
    result = fit(tmp_path, code, "--vary", "WIDTH=1,2,4", "--with", "native")
    assert result.code == 0, result.said
    row = result.out.splitlines()[2].split()
    assert row[3] == "2", result.said  # of 1.6 GiB and what it is multiplied by


# ---- What is decided without a run


def test_sizes_are_those_of_all_tensors():
    batch = {"x": torch.zeros(2, 3), "y": [torch.zeros(4), torch.zeros(7)], "z": "a"}
    assert ahead.sizes(batch) == {
        **{"x/0": 2, "x/1": 3, "x/all": 6},
        **{"y[]/0": 7, "y[]/all": 11},
    }


def test_a_batch_that_is_larger_in_one_size_alone_is_run():
    found = {0: {"b": 4, "t": 9}, 1: {"b": 4, "t": 8}, 2: {"b": 5, "t": 1}}
    assert [*ahead.records(found, [{"b": 4, "t": 8}])] == [0, 2]


def test_the_largest_are_among_those_that_are_left_of_many():
    found = {place: {"t": place, "b": 100 - place} for place in range(100)}
    chosen = ahead.thinned(found, 8)
    assert len(chosen) == 8
    assert {0, 99} < {*chosen}
    assert chosen == sorted(chosen)


def test_few_are_all_taken():
    assert ahead.thinned({3: {"t": 1}, 5: {"t": 2}}, 8) == [3, 5]
