"""Whole training scripts ask oomph for exactly what they ask PyTorch's allocator for.

Each script runs three times: with PyTorch's allocator, with oomph, and with oomph on a
card that is too small, where some blocks fall back to the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from recorded import by_stream, in_order, only_one_stream
from support import MIB, ROOT, TESTS, Simulated

SMALL_MIB = 512
native = Simulated("4GiB,context=0", None)
roomy = Simulated("4GiB,context=0", "reserve:0,offload:off")
small = Simulated(f"{SMALL_MIB}MiB,context=0", "reserve:192MiB,host_limit:4GiB")


@dataclass(frozen=True)
class Run:
    """One training script with its arguments."""

    name: str
    script: Path
    arguments: str = ""
    threads: bool = False  # which thread is first is chance

    def on(self, process: Simulated) -> dict[str, Any]:
        return process.call(
            "recorded", "record", str(self.script), self.arguments.split()
        )


GPT = ROOT / "examples" / "train_gpt.py"
SMALL_GPT = "--layers 3 --heads 8 --width 768 --vocabulary 4096 --block 128 --batch 48"
SCRIPTS = TESTS / "scripts"
HABITS = SCRIPTS / "train_habits.py"
RUNS = [
    Run(
        "a GPT evaluated first, autocast and fused AdamW",
        GPT,
        f"{SMALL_GPT} --amp --fused --evaluate 1",
    ),
    Run(
        "a GPT with dropout, accumulating",
        GPT,
        f"{SMALL_GPT} --accumulate 2 --dropout 0.1",
    ),
    Run("a checkpointed GPT", GPT, f"{SMALL_GPT} --checkpoint --amp --batch 128"),
    Run("a ResNet", SCRIPTS / "train_resnet.py", "--full --batch 8"),
    Run(
        "a ResNet in float16, channels last",
        SCRIPTS / "train_resnet.py",
        "--full --batch 16 --amp --channels-last",
    ),
    Run("varying lengths", SCRIPTS / "train_lengths.py", "--batch 400"),
    Run(
        "growing lengths, autocast",
        SCRIPTS / "train_lengths.py",
        "--batch 400 --sorted --amp",
    ),
    Run("three streams", SCRIPTS / "train_streams.py", "--batch 1200"),
    Run("three streams, autocast", SCRIPTS / "train_streams.py", "--batch 1600 --amp"),
    Run(
        "checkpoints, and evaluation",
        HABITS,
        "--batch 24000 --checkpoint plain --evaluate",
    ),
    Run(
        "reentrant checkpoints, accumulating",
        HABITS,
        "--batch 24000 --checkpoint reentrant --accumulate 2",
    ),
    Run(
        "gradients that are kept",
        HABITS,
        "--batch 16384 --accumulate 2 --keep-gradients",
    ),
    Run("an emptied cache", HABITS, "--batch 16384 --empty-cache --evaluate"),
    Run("inputs in a MemPool, profiled", HABITS, "--batch 16384 --pool --profile"),
    Run("a memory fraction", HABITS, "--batch 16384 --fraction 0.95"),
    Run("three threads", HABITS, "--width 1024 --batch 2048 --threads 3", threads=True),
]


@pytest.mark.long
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_training_asks_for_the_same_memory_with_and_without_enough(run):
    expected, with_room, rescued = (run.on(p) for p in (native, roomy, small))
    in_their_order = by_stream if run.threads else in_order
    wanted = in_their_order(expected["requests"])
    assert len(expected["requests"]) > 500
    assert in_their_order(with_room["requests"]) == wanted
    assert in_their_order(rescued["requests"]) == wanted
    assert expected["requested_peak"] > SMALL_MIB * MIB
    assert rescued["rescues"] > 0
    assert with_room["rescues"] == 0
    if not run.threads:
        assert with_room["allocated_peak"] <= expected["allocated_peak"]
    if only_one_stream(expected["requests"]):
        assert with_room["requested_peak"] == expected["requested_peak"]
        assert rescued["requested_peak"] == expected["requested_peak"]
