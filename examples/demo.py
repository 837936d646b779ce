"""Shows the same training script die under PyTorch's allocator and go on under oomph.

GPT-2 124 M at full size (block 1024, bf16 autocast), on a simulated card of 12 GiB or,
where there is a GPU, for real under a limit of that size. Nothing is downloaded; the
text is Python's own sources. Then the same script, small, with true values: on the CPU,
and on a simulated card that is too small for it.

    make demo
    python examples/demo.py --json FILE    also writes what the table shows
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from oomph.base.sizes import format_size
from oomph.setup.versions import gpu_count

SCRIPT = Path(__file__).parent / "train_gpt.py"
CONTEXT = "0.5 GiB of it taken by the CUDA context"


@dataclass(frozen=True)
class Case:
    """One program on one card, under several allocators ("cpu": on no card at all)."""

    title: str
    card: str  # simulated; memory first
    limit: str  # the same for a real GPU, less what the context takes
    arguments: list[str]
    allocators: list[str]
    settings: str = ""
    note: str = ""
    values: bool = False  # simulated in any case, with values


@dataclass
class Run:
    """What became of one run."""

    case: Case
    allocator: str
    outcome: str = ""
    losses: list[str] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""
    stats: dict[str, int] = field(default_factory=dict)


STEPS = 6
FULL = ["--amp", "--fused", "--steps", str(STEPS)]
SMALL = "--layers 4 --heads 4 --width 128 --vocabulary 256 --block 128 --batch 16"
CASES = [
    Case(
        title="batch 12",
        card="12GiB",
        limit="11.5GiB",
        arguments=[*FULL, "--batch", "12"],
        allocators=["native", "expandable", "oomph"],
        settings="reserve:64MiB",
        note="oomph leaves 64 MiB free here for CUDA libraries, not its usual 256 MiB",
    ),
    Case(
        title="batch 16",
        card="12GiB",
        limit="11.5GiB",
        arguments=[*FULL, "--batch", "16"],
        allocators=["native", "expandable", "oomph"],
    ),
    Case(
        title="batch 64, loss estimated first",
        card="11.69GiB,host=128GiB",
        limit="11.19GiB",
        arguments=[*FULL, "--batch", "64", "--evaluate", "1"],
        allocators=["native", "oomph"],
    ),
]
SMALL_CASE = Case(
    title="small GPT, float32",
    card="64MiB,context=0,cc=8.6,host=4GiB",
    limit="",
    arguments=[*SMALL.split(), "--steps", str(STEPS)],
    allocators=["cpu", "native", "oomph"],
    settings="reserve:0,host_ahead:0",
    values=True,
)


def command(case: Case, allocator: str, real: bool, stats: Path) -> list[str]:
    """The command line of one run."""
    script = [str(SCRIPT), *case.arguments]
    if allocator == "cpu":
        return [sys.executable, *script, "--device", "cpu"]
    if real and not case.values:
        where = ["--device-limit", case.limit]
    else:
        where = ["--simulate", case.card, *(["--values"] if case.values else [])]
    settings = (
        ["--set", case.settings] if allocator == "oomph" and case.settings else []
    )
    return [
        *(sys.executable, "-m", "oomph", "run", *where, *settings),
        *("--allocator", allocator, "--stats", str(stats), *script),
    ]


def execute(case: Case, allocator: str, real: bool) -> Run:
    """Runs the script to its end, whatever that is."""
    run = Run(case, allocator)
    with tempfile.TemporaryDirectory() as folder:
        stats = Path(folder) / "stats.json"
        start = time.perf_counter()
        process = subprocess.run(
            command(case, allocator, real, stats),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # the same bits anywhere
        )
        run.seconds = time.perf_counter() - start
        if stats.exists():
            run.stats = json.loads(stats.read_text()).get("0", {})
    run.losses = re.findall(r"^step \d+ loss (\S+)", process.stdout, re.M)
    errors = re.findall(r"^torch\.OutOfMemoryError: (.*)$", process.stderr, re.M)
    if process.returncode == 0:
        run.outcome = "finished"
    elif errors:
        run.outcome, run.error = "OUT OF MEMORY", errors[-1]
    else:
        run.outcome, run.error = (
            f"failed ({process.returncode})",
            process.stderr[-2000:],
        )
    return run


def layout(rows: list[tuple[str, ...]]) -> str:
    """A table; the first row is its head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in [rows[0], tuple("-" * width for width in widths), *rows[1:]]
    ]
    return "\n".join(line.rstrip() for line in lines)


def table(runs: list[Run]) -> str:
    """What became of each run, and what it held."""
    heads = ("program", "allocator", "outcome", "steps", "device", "host", "rescues")
    rows = [
        (
            run.case.title,
            run.allocator,
            run.outcome,
            f"{len(run.losses)} of {STEPS}",
            format_size(run.stats.get("device_bytes_peak", 0)),
            format_size(run.stats.get("host_bytes_peak", 0)),
            str(run.stats.get("rescues", 0)),
            f"{run.seconds:.1f}",
        )
        for run in runs
    ]
    return layout([(*heads, "s"), *rows])


def table_of_losses(runs: list[Run]) -> str:
    """What became of each run, and its losses in full."""
    heads = ("program", "allocator", "outcome", "device", "host", "losses")
    rows = [
        (
            run.case.title,
            run.allocator,
            run.outcome,
            format_size(run.stats.get("device_bytes_peak", 0)),
            format_size(run.stats.get("host_bytes_peak", 0)),
            " ".join(run.losses),
        )
        for run in runs
    ]
    return layout([heads, *rows])


def shorten(error: str) -> str:
    """PyTorch's error without its advice."""
    return error.split(" If reserved but unallocated memory is large")[0]


def as_data(run: Run) -> dict[str, object]:
    """A run as the JSON file has it; sizes in bytes."""
    return {
        "measure": "demo",
        "program": run.case.title,
        "allocator": run.allocator,
        "outcome": run.outcome,
        "steps": len(run.losses),
        "losses": run.losses,
        "device_bytes_peak": run.stats.get("device_bytes_peak", 0),
        "host_bytes_peak": run.stats.get("host_bytes_peak", 0),
        "rescues": run.stats.get("rescues", 0),
        "seconds": round(run.seconds, 2),
        "error": run.error,
    }


def explain(case: Case, runs: list[Run], real: bool) -> None:
    """Prints on what the case ran, and the error of each run that failed."""
    on = f"limit {case.limit}" if real and not case.values else f"card {case.card}"
    print(f"{case.title}: {on}")
    if case.note:
        print(f"  {case.note}")
    for failed in (run for run in runs if run.case is case and run.error):
        print(f"  {failed.allocator}: {shorten(failed.error)}")


def main() -> int:
    """Runs all cases; gives 1 if oomph did not finish one, or a loss differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the table here"
    )
    path: Path | None = parser.parse_args().json
    real = gpu_count() > 0
    place = "a GPU under a limit" if real else f"a simulated GPU, {CONTEXT}"
    print(f"GPT-2 124 M, block 1024, bf16 autocast, fused AdamW, on {place}.")
    if not real:
        print("Memory is what PyTorch allocates on a GPU; kernels compute nothing.")
    print(flush=True)

    cases = [*CASES, SMALL_CASE]
    jobs = [(case, allocator) for case in cases for allocator in case.allocators]
    runs: list[Run] = []
    with ThreadPoolExecutor(max_workers=1 if real else 2) as pool:
        for run in pool.map(lambda job: execute(*job, real), jobs):
            runs.append(run)
            if path is not None:
                data = [as_data(run) for run in runs]
                path.write_text(json.dumps(data, indent=1) + "\n")
            text = f"[{len(runs)}/{len(jobs)}] {run.case.title}, {run.allocator}"
            print(f"{text}: {run.outcome} after {len(run.losses)} steps", flush=True)

    small = [run for run in runs if run.case is SMALL_CASE]
    print(f"\n{table([run for run in runs if run.case is not SMALL_CASE])}\n")
    for case in CASES:
        explain(case, runs, real)
    print("\nWith values, on a simulated card; what kernels compute is true here.\n")
    print(f"{table_of_losses(small)}\n")
    explain(SMALL_CASE, runs, real)

    of_cpu, of_oomph = small[0].losses, small[-1].losses
    same = of_cpu == of_oomph
    said = "are the CPU's, digit for digit" if same else "DIFFER from the CPU's"
    print(f"  the losses under oomph {said}")
    finished = all(r.outcome == "finished" for r in runs if r.allocator == "oomph")
    return int(not finished or not same)


if __name__ == "__main__":
    raise SystemExit(main())
