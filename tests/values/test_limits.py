"""Where no more may be offloaded a step ends in an error; the next gives its values.

Programs that skip what does not fit, as users write them, give what the CPU gives that
skips the same batches.
"""

from __future__ import annotations

import pytest
import torch
from support import MIB, Simulated
from test_models import differences
from torch import nn

CARD = "60MiB,context=0,memory=values,cc=8.6,host=4GiB"
COMMON = "reserve:0,host_ahead:0"
short_of_host = Simulated(CARD, f"{COMMON},host_limit:48MiB,recompute:off")
strict = Simulated(CARD, f"{COMMON},host_limit:1GiB,strict:yes")
roomy = Simulated(CARD, f"{COMMON},host_limit:1GiB")

SMALL, MIDDLE, LARGE = 2048, 4096, 16384  # rows; a layer saves 1 KiB of each


class Training:
    """A network that takes steps with batches of some rows."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(3)
        self.device = device
        layers = [nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)]
        self.network = nn.Sequential(*layers).to(device)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), foreach=True)
        self.generator = torch.Generator().manual_seed(3)
        self.losses: list[torch.Tensor] = []

    def step(self, rows: int) -> None:
        x = torch.randn(rows, 256, generator=self.generator).to(self.device)
        loss = self.network(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.detach().cpu())

    def skip(self, rows: int) -> None:
        """What the CPU does with a batch that did not fit the GPU."""
        torch.randn(rows, 256, generator=self.generator)

    def attempt(self, rows: int) -> str:
        """A step; gives why there was none, or nothing."""
        try:
            self.step(rows)
        except torch.OutOfMemoryError as error:
            self.optimizer.zero_grad()
            return str(error)
        return ""

    def values(self) -> list[torch.Tensor]:
        kept = [v for s in self.optimizer.state.values() for v in s.values()]
        ends = [*self.network.parameters(), *kept]
        return [*self.losses, *(v.detach().cpu() for v in ends)]


def stats() -> dict[str, int]:
    import oomph

    return oomph.stats()


def assert_like_cpu(training: Training, sizes: list[int], skipped: int) -> None:
    cpu = Training("cpu")
    for rows in sizes:
        (cpu.skip if rows == skipped else cpu.step)(rows)
    assert differences(training.values(), cpu.values()) == []


@pytest.mark.long
@short_of_host
def test_host_memory_that_ends_within_a_planned_step_ends_the_step_alone():
    training = Training("cuda")
    sizes = [MIDDLE] * 4 + [LARGE] + [MIDDLE] * 2 + [LARGE] + [MIDDLE] * 2
    for turn, rows in enumerate(sizes):
        before = stats()["sent_bytes"]
        failure = training.attempt(rows)
        if rows == LARGE:
            assert "CUDA out of memory." in failure
            assert "host_limit is 48.00 MiB" in failure
        else:
            assert failure == "", f"step {turn}"
        if turn >= 3 and rows != LARGE:  # of that, none of what may leave was saved yet
            assert stats()["sent_bytes"] > before, "nothing was planned"
    assert_like_cpu(training, sizes, skipped=LARGE)
    assert stats()["host_bytes_peak"] <= 48 * MIB


@pytest.mark.long
@strict
def test_a_strict_run_that_skips_what_does_not_fit_gives_its_values():
    training = Training("cuda")
    sizes = [SMALL, LARGE, SMALL, LARGE, LARGE, SMALL]
    failures = [training.attempt(rows) for rows in sizes]
    assert [bool(f) for f in failures] == [rows == LARGE for rows in sizes]
    assert all("strict:yes does not allow" in f for f in failures if f)
    assert_like_cpu(training, sizes, skipped=LARGE)
    assert stats()["host_bytes"] == 0


def all_forbidden(training: Training, sizes: list[int]) -> list[str]:
    import oomph

    with oomph.no_offload():
        return [training.attempt(rows) for rows in sizes]


@roomy
def test_a_training_within_a_region_that_fits_gives_its_values():
    training = Training("cuda")
    sizes = [SMALL] * 4
    assert all_forbidden(training, sizes) == [""] * 4
    assert_like_cpu(training, sizes, skipped=LARGE)
    assert stats()["host_bytes"] == 0


@pytest.mark.long
@roomy
def test_what_failed_within_a_region_gives_its_values_after_it():
    training = Training("cuda")
    failures = all_forbidden(training, [SMALL, LARGE, LARGE])
    assert failures[0] == ""
    assert all("nothing is offloaded within" in f for f in failures[1:])
    assert stats()["host_bytes"] == 0
    for _ in range(4):
        training.step(LARGE)
    cpu = Training("cpu")
    cpu.step(SMALL)
    for _ in range(2):
        cpu.skip(LARGE)
    for _ in range(4):
        cpu.step(LARGE)
    assert differences(training.values(), cpu.values()) == []
    assert stats()["host_bytes_peak"] > 0
