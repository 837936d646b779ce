"""What torchrun trains on several simulated cards is what it trains on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from support import TESTS, execute, lines

WAYS = ["ddp", "fsdp", "by-hand"]
RANK_COUNT = 2
TORCHRUN = ["-m", "torch.distributed.run", "--standalone"]
SIZES = ["--layers", "4", "--width", "128", "--batch", "4096", "--steps", "2"]
CARD = f"devices={RANK_COUNT},context=0,memory=values,cc=8.6,host=4GiB"

Values = dict[str, list[torch.Tensor]]  # by the way of training


def train(
    folder: Path, device: str, card: str | None = None, conf: str | None = None
) -> tuple[list[Values], str]:
    """What each rank has, and what all said."""
    done = execute(
        *(sys.executable, *TORCHRUN, "--nproc-per-node", str(RANK_COUNT)),
        *(TESTS / "scripts" / "train_ranks.py", *WAYS, *SIZES),
        *("--device", device, "--save", folder / "values"),
        card=card,
        conf=conf,
    )
    assert done.code == 0, done.err
    return [torch.load(folder / f"values.{i}") for i in range(RANK_COUNT)], done.err


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> list[Values]:
    found, _ = train(tmp_path_factory.mktemp("cpu"), "cpu")
    for way in WAYS:  # each rank has data of its own, and all have one network
        assert found[0][way][0] != found[1][way][0]
    for way in ("ddp", "by-hand"):
        assert torch.equal(found[0][way][-1], found[1][way][-1])
    return found


def check(found: list[Values], wanted: list[Values]) -> None:
    for rank in range(RANK_COUNT):
        for way in WAYS:
            pairs = zip(found[rank][way], wanted[rank][way], strict=True)
            equal = [torch.equal(a, b) for a, b in pairs]
            assert all(equal), f"{way}, rank {rank}: {equal}"


def test_ranks_give_the_cpus_values_with_pytorchs_allocator(wanted, tmp_path):
    found, _ = train(tmp_path, "cuda", f"1GiB,{CARD}")
    check(found, wanted)


def test_ranks_give_the_cpus_values_with_oomph(wanted, tmp_path):
    found, said = train(tmp_path, "cuda", f"1GiB,{CARD}", "reserve:0,offload:off")
    check(found, wanted)
    assert "fell back to host memory" not in said


def test_ranks_on_cards_that_are_too_small_give_the_cpus_values(wanted, tmp_path):
    conf = "reserve:0,host_limit:1GiB"
    found, said = train(tmp_path, "cuda", f"30MiB,{CARD}", conf)
    check(found, wanted)
    for rank in range(RANK_COUNT):
        assert len(lines(said, f"GPU {rank} was out of memory:")) == 1, said
