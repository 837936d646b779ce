"""Is a step's memory what the error predicts?"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from oomph.base.sizes import parse_size
from programs import GPT
from support import on_simulated_card

FOLDER = Path(__file__).parent
ROOM_BYTES = 200 << 30
SHARES = [0.35, 0.5, 0.65]  # of what a step takes: all of these end in forward
PROGRAMS = {
    "GPT-2 124 M, batch 16": [GPT, "--batch", "16", "--fused", "--steps", "2"],
    "with autocast": [GPT, "--batch", "16", "--amp", "--fused", "--steps", "2"],
    "Llama of transformers": [FOLDER / "predicted.py", "llama"],
    "BERT classifier of transformers": [FOLDER / "predicted.py", "bert"],
    "ViT of transformers": [FOLDER / "predicted.py", "vit"],
}
SAID = re.compile(r"A whole step needs about ([\d.]+) (\w+),")


def run(size_bytes: int, command: list[str | Path], *options: str | Path) -> str:
    """A program on a card without room for more; what it says."""
    words = ["run", "--simulate", f"{size_bytes},context=0", *options]
    settings = ["--set", "offload:off,reserve:0"]
    done = subprocess.run(
        [sys.executable, "-m", "oomph", *words, *settings, *command],
        env=on_simulated_card(),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_needs_what_was_predicted(figure, name, tmp_path):
    command = PROGRAMS[name]
    run(ROOM_BYTES, command, "--stats", tmp_path / "stats.json")
    stats = json.loads((tmp_path / "stats.json").read_text())["0"]
    peak = stats["allocated_bytes.all.peak"]
    told = {}
    for share in SHARES:
        text = run(int(share * peak), command)
        said = SAID.search(text)
        assert said is not None, text
        told[share] = parse_size(said[1] + said[2])
    figure(
        name=f"predicted peak of a step: {name}",
        value=100 * max(abs(size / peak - 1) for size in told.values()),
        limit=2,
        unit="% off",
        kind="deterministic",
        how=f"the step takes {peak / 2**30:.2f} GiB; told on cards of "
        + ", ".join(f"{s:.0%} of that: {told[s] / 2**30:.2f}" for s in SHARES),
    )
