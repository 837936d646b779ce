"""Shows a program for many cards run without one: all ranks, and one of a thousand.

``train_fsdp.py`` trains on 8 simulated cards with true values, over gloo, over NCCL,
and under oomph on cards that are too small. Then it runs as rank 0 of 1,024 with
Llama 3 70B.

    make demo-cluster
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

SCRIPT = str(Path(__file__).parent / "train_fsdp.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
ALONE = ["-m", "oomph", "run", "--simulate", "h100", "--allocator", "native"]
LLAMA_70B = (
    "--width 8192 --layers 80 --heads 64 --key-heads 8 --hidden 28672 "
    "--vocabulary 128256 --block 8192 --batch 1 --steps 2 --amp --checkpoint"
)


@dataclass(frozen=True)
class Case:
    """One way to run the script.

    Attributes:
        title: What it shows.
        command: What follows Python.
        card: The simulated card of each rank; "": the command says.
        conf: oomph's settings; "": PyTorch's own allocator.
    """

    title: str
    command: list[str]
    card: str = ""
    conf: str = ""


def cases(ranks: int) -> list[Case]:
    """All that is shown, with so many ranks of a small model."""
    values = f"devices={ranks},context=0,memory=values"
    command = [*TORCHRUN, str(ranks), SCRIPT, "--backend"]
    short = f"40MiB,{values},host=4GiB"
    return [
        Case(f"{ranks} cards, gloo", [*command, "gloo"], f"256MiB,{values}"),
        Case(f"{ranks} cards, NCCL", [*command, "nccl"], f"256MiB,{values}"),
        Case(
            f"{ranks} cards of 40 MiB, NCCL, oomph",
            [*command, "nccl"],
            short,
            "offload:on-oom,reserve:0",
        ),
        Case(
            "Llama 3 70B, rank 0 of 1,024 H100",
            [*ALONE, "--world", "1024", SCRIPT, *LLAMA_70B.split()],
        ),
    ]


def run(case: Case) -> tuple[str, list[str], str]:
    """Runs it to its end: how it went, the losses, the peak of rank 0."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    variables |= {"OOMPH_SIMULATE": case.card, "OOMPH_CONF": case.conf}
    if not case.card:
        del variables["OOMPH_SIMULATE"], variables["OOMPH_CONF"]
    if not case.conf:
        variables.pop("OOMPH_CONF", None)
    command = [sys.executable, *case.command]
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        errors = re.findall(r"^.*Error: .*$", done.stderr, re.MULTILINE)
        return errors[0] if errors else f"exit code {done.returncode}", [], ""
    peak = re.search(r"rank 0 of \d+: peak ([\d.]+) GiB", done.stdout)
    said = done.stderr + done.stdout
    rescued = {*re.findall(r"GPU (\d+) (?:is|was) out of memory", said)}
    how = f"goes on: {len(rescued)} ranks used host memory" if rescued else "runs"
    losses = re.findall(r"loss ([\d.]+)", done.stdout)
    return how, losses, peak[1] if peak else ""


def main() -> int:
    """Prints the table; gives 1 if a run fails or a value differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=8, help="of the small model")
    options = parser.parse_args()
    print(f"{'':40}{'losses':38}{'peak GiB':>10}{'s':>6}  outcome", flush=True)
    wanted: list[str] = []
    is_right = True
    for case in cases(options.ranks):
        began = time.monotonic()
        how, losses, peak = run(case)
        seconds = time.monotonic() - began
        if not case.card:
            shown = "not computed"
        else:
            shown = " ".join(losses)
            wanted = wanted or losses
            is_right &= bool(losses) and losses == wanted
        is_right &= bool(peak)
        print(f"{case.title:40}{shown:38}{peak:>10}{seconds:6.0f}  {how}", flush=True)
    print("All losses are equal." if is_right else "A run failed, or losses differ.")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
