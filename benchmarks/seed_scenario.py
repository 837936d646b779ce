"""GPT-2 124 M with batch 64 on a card of 11.69 GiB, as somebody really tried.

The script estimates the loss without gradients first, where PyTorch's allocator finds
no room for logits of 6.14 GiB; without that it dies in training.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from programs import GPT
from support import Result, run_script

CARD = "11.69GiB,gpu=rtx3060,host=128GiB"
BATCH_64 = ("--amp", "--batch", "64")
EVALUATED = (*BATCH_64, "--evaluate", "1")
ACCUMULATED = ("--amp", "--batch", "4", "--accumulate", "16", "--evaluate", "1")

_COUNTS_BLOCKS = """
import runpy, sys, torch
entered = 0

def count(module, _):
    global entered
    entered += type(module).__name__ == "Block"

torch.nn.modules.module.register_module_forward_pre_hook(count)
sys.argv.pop(0)
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except torch.OutOfMemoryError:
    print("out of memory in block", entered)
    raise
"""


@dataclass(frozen=True)
class Case:
    """One run: what it is, with which allocator, and with which arguments."""

    name: str
    allocator: str
    arguments: tuple[str, ...]


CASES = (
    Case("batch 64, loss estimated first", "native", EVALUATED),
    Case("batch 64", "native", BATCH_64),
    Case("batch 64, loss estimated first", "oomph", EVALUATED),
    Case("batch 64", "oomph", BATCH_64),
    Case("batch 4, accumulated 16 times", "native", ACCUMULATED),
    Case("batch 4, accumulated 16 times", "oomph", ACCUMULATED),
)


def run(case: Case, folder: Path) -> Result:
    """Runs the script; what it prints tells the block that it died in."""
    counter = folder / "count_blocks.py"
    counter.write_text(_COUNTS_BLOCKS)
    return run_script(
        counter,
        [str(GPT), *case.arguments, "--steps", "5"],
        allocator=case.allocator,
        card=CARD,
    )


def wanted_gib(result: Result) -> float:
    """What it asked for when it died, in GiB; 0: it did not die."""
    found = re.search(r"Tried to allocate ([\d.]+) (GiB|MiB)", result.error)
    if found is None:
        return 0.0
    return float(found[1]) / (1024 if found[2] == "MiB" else 1)


def block(result: Result) -> int:
    """How many blocks of the model had begun when it died; 0: it did not."""
    found = re.search(r"out of memory in block (\d+)", result.output)
    return int(found[1]) if found else 0
