"""The training programs that the benchmarks run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from support import ROOT

GPT = ROOT / "examples" / "train_gpt.py"
SCRIPTS = ROOT / "tests" / "scripts"


@dataclass(frozen=True)
class Program:
    """A training program with its arguments.

    Attributes:
        repeats: Whether each step allocates what the one before it did.
    """

    name: str
    script: Path
    arguments: list[str]
    repeats: bool = True


def gpt(name: str, *arguments: str) -> Program:
    return Program(name, GPT, ["--amp", "--steps", "5", *arguments])


PROGRAMS = [
    gpt("GPT-2 124 M, batch 12", "--batch", "12", "--fused"),
    gpt(
        "GPT-2 124 M, batch 4, accumulated 4 times", "--batch", "4", "--accumulate", "4"
    ),
    gpt(
        "GPT-2 124 M, batch 8, checkpointed", "--batch", "8", "--checkpoint", "--fused"
    ),
    Program("ResNet-50-like", SCRIPTS / "train_resnet.py", ["--full"]),
    Program(
        "batches of varying length",
        SCRIPTS / "train_lengths.py",
        ["--full"],
        repeats=False,
    ),
    Program("three streams", SCRIPTS / "train_streams.py", ["--full"]),
]
