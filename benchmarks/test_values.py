"""What do values cost on the simulated GPU?"""

from __future__ import annotations

import re
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from setuptools import Distribution
from support import (
    CARD,
    ROOT,
    alternate,
    environment,
    numbers,
    run_snippet,
    setup_functions,
    torch_folder,
)

GPT = ROOT / "examples" / "train_gpt.py"
SMALL = ["--layers", "4", "--heads", "4", "--width", "128", "--vocabulary", "512"]
SHORT = ["--block", "64", "--batch", "12", "--steps", "12"]
VALUES = "1GiB,memory=values"


def step_ms(side: str) -> float:
    """The least time of a step, on the CPU or on a card with values."""
    variables = {"OMP_NUM_THREADS": "1"}
    if side == "cuda":
        variables["OOMPH_SIMULATE"] = VALUES
    output = subprocess.check_output(
        [sys.executable, GPT, *SMALL, *SHORT, "--device", side],
        text=True,
        env=environment(**variables),
    )
    times = [float(ms) for ms in re.findall(r"(\d+) ms", output)]
    assert len(times) == 12, output
    return min(times[2:])


def test_a_step_with_values_costs_little_more_than_on_the_cpu(figure):
    found = alternate(step_ms, ["cpu", "cuda"])
    ratios = sorted(b / a for a, b in zip(found["cpu"], found["cuda"], strict=True))
    figure(
        name="step of a small GPT with values / on the CPU",
        value=statistics.median(ratios),
        limit=2.5,
        unit="x",
        kind="paired",
        how="4 layers of 128, 12 x 64 tokens, 1 thread, median of 7 pairs of "
        f"processes, {ratios[0]:.2f} to {ratios[-1]:.2f}; the CPU's step "
        f"{min(found['cpu']):.0f} ms",
    )


# Processor time of short batches: others that use the machine disturb it little.
SMALL_OPERATOR = """
import time, torch
x = torch.zeros(16, device="cuda")
best = 1.0
for _ in range(60):
    torch.cuda.synchronize()
    start = time.process_time()
    for _ in range(2_000):
        x.add_(1)
    torch.cuda.synchronize()
    best = min(best, (time.process_time() - start) / 2_000)
print("us", best * 1e6)
"""


def test_values_add_little_to_a_small_operator(figure):
    cards = {"values": f"{CARD},memory=values", "shapes": CARD}
    found = alternate(
        lambda side: numbers(run_snippet(SMALL_OPERATOR, "oomph", cards[side]))["us"],
        list(cards),
        rounds=5,
    )
    best = {side: min(values) for side, values in found.items()}
    figure(
        name="x.add_(1) of 16 elements with values - without",
        value=best["values"] - best["shapes"],
        limit=10,
        unit="us",
        kind="paired",
        how=f"processor time, best of 5 alternating processes: "
        f"{best['values']:.1f} and {best['shapes']:.1f} us",
    )


def cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_the_values_layer_is_built_quickly(figure, tmp_path: Path):
    setup = setup_functions()
    includes = setup["system_includes"](setup["cuda_includes"]())
    extension = setup["values_extension"](torch_folder(), includes)
    command = setup["Build"](Distribution({"ext_modules": [extension]}))
    command.build_temp, command.build_lib = str(tmp_path), str(tmp_path)
    command.ensure_finalized()
    before, start = cpu_seconds_of_children(), time.monotonic()
    command.run()
    wall = time.monotonic() - start
    figure(
        name="build of the values layer, processor time",
        value=cpu_seconds_of_children() - before,
        limit=30,
        unit="s",
        kind="timed",
        how=f"one compiler, {wall:.1f} s on the clock of this machine",
    )
