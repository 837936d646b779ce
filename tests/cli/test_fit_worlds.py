"""``oomph fit --world``: ranks that differ are found, and the largest one decides."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from oomph.fitting import worlds
from oomph.fitting.process.record import Record
from support import oomph

# A stage holds more than the one before; there are three of them.
STAGES = """
import os, torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=device)
stage = rank * 3 // size
weight = torch.zeros(100 << 18, device=device)
more = torch.zeros((100 << 18) * stage or 1, device=device)
weight.requires_grad_()
optimizer = torch.optim.SGD([weight], 0.1)
for step in range(2):
    weight.sum().backward()
    dist.all_reduce(weight.grad)
    optimizer.step()
"""


@pytest.fixture
def stages(tmp_path: Path) -> Path:
    path = tmp_path / "stages.py"
    path.write_text(textwrap.dedent(STAGES))
    return path


def asking(sizes: list[int]):
    """Runs ranks which ask for so much; keeps which were run."""
    ran: list[int] = []

    def run(rank: int) -> Record:
        ran.append(rank)
        return Record("steps", 0, reserved_bytes=sizes[rank], trace=[sizes[rank]])

    return run, ran


def test_few_ranks_are_run_where_all_are_alike():
    run, ran = asking([5] * 1000)
    known: dict[int, Record] = {}
    assert not worlds.look(known, run, 0, 999)
    assert ran == [0, 999]
    (group,) = worlds.grouped(known)
    assert (group.first, group.last) == (0, 999)


@pytest.mark.parametrize("bounds", [[700], [1], [999], [100, 900], [250, 500, 750]])
def test_where_ranks_begin_to_differ_is_found(bounds):
    sizes = [sum(rank >= bound for bound in bounds) for rank in range(1000)]
    run, ran = asking(sizes)
    known: dict[int, Record] = {}
    unsure = worlds.look(known, run, 0, 999)
    assert len(ran) == len(set(ran)) <= 16
    if not unsure:
        assert [group.first for group in worlds.grouped(known)] == [0, *bounds]
    assert unsure == (len(bounds) > 1)  # each takes ten runs


@pytest.mark.long
def test_the_rank_that_needs_most_decides(stages):
    words = ("--brief", "--gpu", "900MiB,2GiB", "--json", "--world", "6")
    result = oomph("fit", *words, stages)
    (found,) = json.loads(result.out)["worlds"]
    groups = [(each["first"], each["last"]) for each in found["ranks"]]
    assert groups == [(0, 1), (2, 3), (4, 5)]
    assert (found["world"], found["rank"], found["unsure"]) == (6, 4, False)
    low, middle, high = (each["needed_bytes"] for each in found["ranks"])
    assert middle - low == high - middle == 100 << 20
    assert result.code == 0, result.said


@pytest.mark.long
def test_one_rank_of_several_worlds_is_reported_in_words(stages):
    words = ("--world", "3,6", "--rank", "0", "--local-world", "2")
    result = oomph("fit", "--brief", "--gpu", "1GiB", *words, stages)
    assert result.code == 0, result.said
    assert "A world of 3 on 2 machines, of which 1 rank ran." in result.out
    assert "A world of 6 on 3 machines, of which 1 rank ran." in result.out
    assert result.out.count("The table is for rank 0.") == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--rank", "1"], "--rank and --local-world need a world"),
        (["--world", "two"], "--world two: a list of counts, such as 8,64"),
        (["--world", "0"], "a world has at least one rank"),
        (["--world", "4", "--rank", "4"], "ranks are from 0 to 3"),
        (["--world", "4", "--local-world", "99"], "99 ranks on a machine"),
        (["--world", "4", "--vary", "--n=1..2"], "--world and --vary: give one"),
    ],
)
def test_a_world_that_cannot_be_is_refused(words, why, stages):
    result = oomph("fit", "--brief", *words, stages)
    assert result.code == 2
    assert why in result.err
