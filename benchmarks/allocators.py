"""The allocators side by side: traces of programs of other hands, asked of each.

    python benchmarks/allocators.py [NAME ...]

Each program of `strangers` runs once on a card with room, under PyTorch's own
allocator, with `oomph run --trace`. `oomph replay` then asks PyTorch's allocator, its
expandable segments and oomph for the same, and bisects the smallest card that each
comes through on. Nothing leaves the card for that, and oomph keeps nothing for CUDA
libraries, since the others do not. Results are kept in results/allocators.json, those
of other programs as they are, and shown in docs/allocators.md.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from support import GIB, ROOT, environment

STRANGERS = Path(__file__).parent / "strangers"
RESULTS = Path(__file__).parent / "results" / "allocators.json"
PAGE = ROOT / "docs" / "allocators.md"
CARD = "96GiB,gpu=rtx4090,host=120GiB"
SECONDS_MAX = 600  # for one program, recorded and replayed
WAYS = {
    "native": "PyTorch's allocator",
    "expandable": "expandable segments",
    "oomph": "oomph",
}
Row = dict[str, Any]


def names() -> list[str]:
    """All programs, in the order of their files."""
    told = subprocess.check_output(
        [sys.executable, STRANGERS, "--list"], text=True, cwd=ROOT
    )
    return told.split()


def measure(name: str) -> Row:
    """Records a program's trace and asks each allocator for the same.

    Raises:
        RuntimeError: The program or a replay failed; the text is its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace")
        recorded = ("run", "--simulate", CARD, "--allocator", "native", "--trace")
        _oomph(*recorded, str(trace), str(STRANGERS / "alone.py"), name)
        # That it does not fit the small card is not asked: smallest cards are bisected.
        options = ("--gpu", "96GiB", "--host", "0", "--allocator", "native", "--json")
        options += ("--set", "reserve:0")
        found = json.loads(_oomph("replay", *options, str(trace)))
        return {"name": name, "trace_bytes": trace.stat().st_size, **_row(found)}


def _oomph(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "oomph", *words],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        env=environment(OMP_NUM_THREADS="1"),
    )
    if done.returncode:
        raise RuntimeError(f"oomph {' '.join(words)}:\n{done.stderr[-3000:]}")
    return done.stdout


def _row(found: Row) -> Row:
    """The figures of a replay, by allocator."""
    ways = {}
    for way in WAYS:
        run = found["cards"][0]["ways"][way]["run"]
        played = re.search(r"(\d+) events in ([\d.]+) s", run["output"])
        if played is None:
            raise RuntimeError(f"{way} did not come through:\n{run['output']}")
        ways[way] = {
            "allocated_bytes": run["allocated_bytes"],
            "reserved_bytes": run["reserved_bytes"],
            "smallest_bytes": found["smallest_bytes"][way],
            "events": int(played[1]),
            "ns": float(played[2]) / int(played[1]) * 1e9,
        }
    return ways


def keep(row: Row) -> None:
    """Puts a result in place of that with the same name, and writes the page."""
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    rows = [*(r for r in rows if r["name"] != row["name"]), row]
    RESULTS.write_text(
        json.dumps(sorted(rows, key=lambda r: r["name"]), indent=1) + "\n"
    )
    PAGE.write_text(page(rows))


# ---- The page

_TEXT = """\
# Allocators compared

{count} programs of other hands ([benchmarks/strangers](../benchmarks/strangers)) were \
each recorded once under PyTorch's allocator as [a trace](traces.md), which PyTorch's \
allocator, its expandable segments and oomph were then asked for. Everything ran on \
simulated cards with PyTorch {torch}; the allocators are the real ones. \
`python benchmarks/allocators.py` writes this page anew.

What a program **reserves** beyond what is **allocated** at the peak is what it cannot \
use. **Smallest card** is the least memory on which the trace comes through, CUDA's \
context included, without anything leaving the card; it is found to one part in 128. \
The 256 MiB that oomph keeps free for CUDA libraries unless told otherwise \
([`reserve`](settings.md)) are set to none here, as the others keep none. [What its \
offload makes possible](how_offload_works.md) comes on top.

{summary}

| program | allocated, GiB | reserved: PyTorch | expandable | oomph | \
smallest card: PyTorch | expandable | oomph |
| --- | --: | --: | --: | --: | --: | --: | --: |
{rows}
"""


def page(rows: list[Row]) -> str:
    """The results as Markdown."""
    import torch

    ordered = sorted(rows, key=_spared, reverse=True)
    return _TEXT.format(
        count=len(rows),
        torch=torch.__version__.partition("+")[0],
        summary="\n".join(_summary(rows)),
        rows="\n".join(map(_line, ordered)),
    )


def _spared(row: Row) -> float:
    """By how much oomph's smallest card is smaller than that of PyTorch's allocator."""
    return 1 - row["oomph"]["smallest_bytes"] / row["native"]["smallest_bytes"]


def _summary(rows: list[Row]) -> Iterator[str]:
    yield (
        "| | reserved beyond allocated: median | most | smallest card beyond oomph's: "
        "median | most | ns an event, median |"
    )
    yield "| --- | --: | --: | --: | --: | --: |"
    for way, title in WAYS.items():
        rest = [r[way]["reserved_bytes"] / r[way]["allocated_bytes"] - 1 for r in rows]
        card = [
            r[way]["smallest_bytes"] / r["oomph"]["smallest_bytes"] - 1 for r in rows
        ]
        ns = median(r[way]["ns"] for r in rows)
        yield (
            f"| {title} | {median(rest):.1%} | {max(rest):.1%} | {median(card):.1%} "
            f"| {max(card):.1%} | {ns:.0f} |"
        )


def _line(row: Row) -> str:
    sizes = [row["native"]["allocated_bytes"]]
    sizes += [row[way]["reserved_bytes"] for way in WAYS]
    sizes += [row[way]["smallest_bytes"] for way in WAYS]
    return f"| {row['name']} | {' | '.join(f'{s / GIB:.2f}' for s in sizes)} |"


def main(chosen: Iterable[str]) -> None:
    for name in chosen:
        try:
            row = measure(name)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            continue
        keep(row)
        print(_line(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or names())
