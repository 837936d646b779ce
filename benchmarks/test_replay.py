"""What does a whole recorded step cost, beside PyTorch's own allocator?"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support import (
    NATIVE,
    ROOT,
    alternate,
    build_with_core,
    build_with_torch,
    must_run,
    numbers,
    on_simulated_card,
)

SCRIPT = ROOT / "examples" / "train_gpt.py"
STEP = ["--amp", "--fused", "--batch", "12", "--steps", "4"]
WARM_UP, TURNS = "4", "30"


@pytest.fixture(scope="module")
def replays(tmp_path_factory) -> dict[str, list[str]]:
    """The commands that replay a step of GPT-2 124 M, batch 12, through each side."""
    folder = tmp_path_factory.mktemp("replay")
    trace = folder / "step.trace"
    must_run(NATIVE / "record.py", [str(trace), str(SCRIPT), *STEP], allocator="native")
    programs = {
        "oomph": build_with_core("replay_oomph", folder),
        "native": build_with_torch("replay_native", folder, shared=False),
    }
    return {side: [str(path), str(trace)] for side, path in programs.items()}


def run(command: list[str], warm_up: str, turns: str) -> dict[str, float]:
    text = subprocess.check_output(
        [*command, warm_up, turns], text=True, env=on_simulated_card()
    )
    return numbers(text)


def test_a_recorded_step_takes_no_longer(figure, replays):
    for command in replays.values():
        assert run(command, "1", "1")["unmatched"] == 0, "the step is not in balance"
    found = alternate(
        lambda side: run(replays[side], WARM_UP, TURNS)["ns"], ["native", "oomph"]
    )
    best = {side: min(values) for side, values in found.items()}
    events = run(replays["oomph"], "1", "1")["events"]
    figure(
        name="recorded step of GPT-2 124 M replayed / native, time",
        value=best["oomph"] / best["native"],
        limit=1.0,
        unit="x",
        kind="paired",
        how=f"best of 7 alternating processes: native {best['native'] / 1e3:.0f} us, "
        f"oomph {best['oomph'] / 1e3:.0f} us for {events:.0f} events",
    )


def instructions(command: list[str], folder: Path, turns: int) -> float:
    """Instructions inside replay_step(), a turn."""
    out = folder / "callgrind.out"
    subprocess.run(
        [
            *("valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"),
            *("--collect-atstart=no", "--toggle-collect=replay_step"),
            *(*command, WARM_UP, str(turns)),
        ],
        check=True,
        capture_output=True,
        env=on_simulated_card(),
    )
    total = re.search(r"^(?:totals|summary): (\d+)", out.read_text(), re.M)
    assert total is not None
    return int(total.group(1)) / turns


def test_a_recorded_step_takes_no_more_instructions(figure, replays, tmp_path):
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind, which counts the instructions, is not installed")
    count = {
        side: instructions(command, tmp_path, 3) for side, command in replays.items()
    }
    figure(
        name="recorded step of GPT-2 124 M replayed / native, instructions",
        value=count["oomph"] / count["native"],
        limit=1.0,
        unit="x",
        kind="deterministic",
        how=f"callgrind: native {count['native'] / 1e6:.2f} M, "
        f"oomph {count['oomph'] / 1e6:.2f} M",
    )
