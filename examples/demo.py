"""Shows the same training script die under PyTorch's allocator and go on under oomph.

GPT-2 124 M at full size (block 1024, bf16 autocast), on a simulated card of 12 GiB or,
where there is a GPU, for real under a limit of that size. Nothing is downloaded; the
text is Python's own sources.

    make demo
    python examples/demo.py --json FILE    also writes what the table shows
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from oomph.sizes import format_size
from oomph.versions import gpu_count

SCRIPT = Path(__file__).parent / "train_gpt.py"
CONTEXT = "0.5 GiB of it taken by the CUDA context"


@dataclass(frozen=True)
class Case:
    """One program on one card, under several allocators."""

    title: str
    card: str  # simulated; memory first
    limit: str  # the same for a real GPU, less what the context takes
    arguments: list[str]
    allocators: list[str]
    settings: str = ""
    note: str = ""


@dataclass
class Run:
    """What became of one run."""

    case: Case
    allocator: str
    outcome: str = ""
    steps: int = 0
    seconds: float = 0.0
    error: str = ""
    stats: dict[str, int] = field(default_factory=dict)


STEPS = 6
CASES = [
    Case(
        title="batch 12",
        card="12GiB",
        limit="11.5GiB",
        arguments=["--batch", "12", "--steps", str(STEPS)],
        allocators=["native", "expandable", "oomph"],
        settings="reserve:64MiB",
        note="oomph leaves 64 MiB free here for CUDA libraries, not its usual 256 MiB",
    ),
    Case(
        title="batch 16",
        card="12GiB",
        limit="11.5GiB",
        arguments=["--batch", "16", "--steps", str(STEPS)],
        allocators=["native", "expandable", "oomph"],
    ),
    Case(
        title="batch 64, loss estimated first",
        card="11.69GiB,host=128GiB",
        limit="11.19GiB",
        arguments=["--batch", "64", "--evaluate", "1", "--steps", str(STEPS)],
        allocators=["native", "oomph"],
    ),
]


def command(case: Case, allocator: str, real: bool, stats: Path) -> list[str]:
    """The command line of one run."""
    where = ["--device-limit", case.limit] if real else ["--simulate", case.card]
    settings = (
        ["--set", case.settings] if allocator == "oomph" and case.settings else []
    )
    return [
        *(sys.executable, "-m", "oomph", "run", *where, *settings),
        *("--allocator", allocator, "--stats", str(stats)),
        *(str(SCRIPT), "--amp", "--fused", *case.arguments),
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
        )
        run.seconds = time.perf_counter() - start
        if stats.exists():
            run.stats = json.loads(stats.read_text()).get("0", {})
    run.steps = len(re.findall(r"^step \d+ loss", process.stdout, re.M))
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


def table(runs: list[Run]) -> str:
    """All runs, a line each."""
    heads = (
        "program",
        "allocator",
        "outcome",
        "steps",
        "device",
        "host",
        "rescues",
        "s",
    )
    rows = [
        (
            run.case.title,
            run.allocator,
            run.outcome,
            f"{run.steps} of {STEPS}",
            format_size(run.stats.get("device_bytes_peak", 0)),
            format_size(run.stats.get("host_bytes_peak", 0)),
            str(run.stats.get("rescues", 0)),
            f"{run.seconds:.1f}",
        )
        for run in runs
    ]
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in [heads, tuple("-" * width for width in widths), *rows]
    ]
    return "\n".join(line.rstrip() for line in lines)


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
        "steps": run.steps,
        "device_bytes_peak": run.stats.get("device_bytes_peak", 0),
        "host_bytes_peak": run.stats.get("host_bytes_peak", 0),
        "rescues": run.stats.get("rescues", 0),
        "seconds": round(run.seconds, 2),
        "error": run.error,
    }


def main() -> int:
    """Runs all cases; gives 1 if oomph did not finish one."""
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

    jobs = [(case, allocator) for case in CASES for allocator in case.allocators]
    runs: list[Run] = []
    with ThreadPoolExecutor(max_workers=1 if real else 2) as pool:
        for run in pool.map(lambda job: execute(*job, real), jobs):
            runs.append(run)
            if path is not None:
                data = [as_data(run) for run in runs]
                path.write_text(json.dumps(data, indent=1) + "\n")
            text = f"[{len(runs)}/{len(jobs)}] {run.case.title}, {run.allocator}"
            print(f"{text}: {run.outcome} after {run.steps} steps", flush=True)

    print(f"\n{table(runs)}\n")
    for case in CASES:
        print(f"{case.title}: {'limit ' + case.limit if real else 'card ' + case.card}")
        if case.note:
            print(f"  {case.note}")
        failed = next((r for r in runs if r.case is case and r.error), None)
        if failed is not None:
            print(f"  {failed.allocator}: {shorten(failed.error)}")
    return int(any(r.allocator == "oomph" and r.outcome != "finished" for r in runs))


if __name__ == "__main__":
    raise SystemExit(main())
