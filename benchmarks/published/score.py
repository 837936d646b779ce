"""Rebuilds published measurements on simulated cards, and writes what came of it.

    python benchmarks/published/score.py               # all: ten minutes of a core
    python benchmarks/published/score.py rope swiglu   # those whose name has a word

Rows of clusters and of torchtune need the program that was measured (clusters.py,
recipes.py).

Results go to benchmarks/results/published.json; rows that do not run keep theirs.
tools/checked.py makes the tables of docs/checked.md of them.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from bars import BESIDE_COMPILED, OF_OLDER_KERNELS, TIME

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "published.json"
CARDS = {  # the simulated card of each GPU that was measured on
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "NVIDIA B200": "b200",
    "NVIDIA GeForce RTX 3090": "rtx3090",
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "NVIDIA H100 80GB HBM3": "h100",
    # By its data sheet; the known h100 is the SXM5.
    "NVIDIA H100 PCIe": "h100,sms=114,bandwidth=2039GB/s,fp32=51.2TFLOPS,"
    "tf32=378TFLOPS,fp16=756TFLOPS,bf16=756TFLOPS",
}
COMPILED = {"embedding"}  # torch.compile had run in the process that was measured
# Timed in 2024, before PyTorch gave these the kernels that are simulated.
OLDER_KERNELS = {"embedding", "cross_entropy"}
OF_DEVICE = {"reserved", "nvidia-smi"}


@dataclass(frozen=True)
class Row:
    """A published measurement.

    Attributes:
        name: Its own, within its kind.
        kind: What was measured: a head of docs/checked.md.
        card: The simulated card.
        published: In the unit.
        unit: "MiB" or "ms".
        source: Repository, commit, path and line.
        program: The script here that rebuilds it.
        request: What the script is given.
    """

    name: str
    kind: str
    card: str
    published: float
    unit: str
    source: str
    program: str
    request: dict[str, Any]


def read(name: str) -> Iterator[dict[str, str]]:
    """The rows of an extract."""
    with open(HERE / name, newline="") as file:
        yield from csv.DictReader(file)


def kernels() -> Iterator[Row]:
    """The rows of liger.csv."""
    for row in read("liger.csv"):
        kernel, is_memory = row["kernel"], row["metric"] == "memory"
        kind = "kernel memory" if is_memory else TIME
        if not is_memory and kernel in OLDER_KERNELS:
            kind = OF_OLDER_KERNELS
        if is_memory and kernel in COMPILED:
            kind = BESIDE_COMPILED
        gpu = row["gpu"].removeprefix("NVIDIA ").removeprefix("GeForce ")
        yield Row(
            f"{kernel} {row['mode']}, {row['x_name']} {row['x']}{variant(row)}, {gpu}",
            kind,
            CARDS[row["gpu"]],
            float(row["published"]),
            "MiB" if is_memory else "ms",
            row["source"],
            "measure.py",
            dict(row),
        )


def variant(row: dict[str, str]) -> str:
    """What tells rows of one kernel apart."""
    config = json.loads(row["config"])
    if row["kernel"] == "embedding":
        return f" x {config['D']}"
    if row["kernel"] == "softmax":
        return f", {config['dtype'].removeprefix('torch.')}"
    return ""


def trainings() -> Iterator[Row]:
    """The rows of trainings.csv."""
    for row in read("trainings.csv"):
        request = json.loads(row["config"])
        figure = row["figure"]
        kind = "training memory" if request["program"] == "fms" else "program memory"
        kind = "reserved memory" if figure in OF_DEVICE else kind
        is_time = figure == "step"
        yield Row(
            f"{row['name']}, {figure}",
            "training time" if is_time else kind,
            row["card"],
            float(row["published"]),
            "ms" if is_time else "MiB",
            row["source"],
            "trainings.py",
            {**request, "figure": figure},
        )


def clusters() -> Iterator[Row]:
    """The rows of clusters.csv."""
    for row in read("clusters.csv"):
        yield Row(
            row["name"],
            "cluster memory",
            "95GiB,gpu=h100",  # of 96 GB, as the page says
            float(row["published"]) * 1024,
            "MiB",
            row["source"],
            "clusters.py",
            {key: row[key] for key in ("model", "world", "arguments")},
        )


def recipes() -> Iterator[Row]:
    """The rows of recipes.csv."""
    for row in read("recipes.csv"):
        is_time = row["figure"] == "step"
        yield Row(
            f"{row['name']}, {row['figure']}",
            "training time" if is_time else "training memory",
            "a100-80gb",
            float(row["published"]),
            "ms" if is_time else "MiB",
            row["source"],
            "recipes.py",
            {key: row[key] for key in ("recipe", "config", "arguments", "figure")},
        )


def contexts() -> Iterator[Row]:
    """The rows of contexts.csv."""
    for row in read("contexts.csv"):
        yield Row(
            row["name"],
            "context memory",
            row["card"],
            float(row["published"]),
            "MiB",
            row["source"],
            "contexts.py",
            {},
        )


def rows() -> list[Row]:
    """All that are published."""
    found = [*kernels(), *trainings(), *contexts(), *recipes(), *clusters()]
    assert len({(row.kind, row.name) for row in found}) == len(found)
    return found


def score(chosen: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """Runs rows, those of one script and card together, and gives results."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in chosen:
        groups.setdefault((row.program, row.card), []).append(row)
    for (program, card), group in groups.items():
        for row, simulated in zip(group, run(program, card, group), strict=True):
            yield {
                "kind": row.kind,
                "name": row.name,
                "published": row.published,
                "simulated": round(simulated, 6),
                "unit": row.unit,
                "source": row.source,
            }


def half_of(name: str) -> str:
    """The half of the times that a row is in: the clock is fitted to the first."""
    return "second" if crc32(name.encode()) & 1 else "first"


def run(program: str, card: str, group: Sequence[Row]) -> list[Any]:
    """What a script says of rows, on a card."""
    environment = {**os.environ, "OOMPH_SIMULATE": card, "OOMPH_CONF": ""}
    environment["OOMPH_SIMULATE_SAID"] = card
    environment.setdefault("OMP_NUM_THREADS", "1")
    said = subprocess.run(
        [sys.executable, str(HERE / program)],
        input=json.dumps([row.request for row in group]),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in said.stdout.splitlines()]


def off(result: dict[str, Any]) -> float:
    """How far the simulation is off, in percent of what was published."""
    return float(result["simulated"] / result["published"] - 1) * 100


def main(words: Sequence[str]) -> None:
    """Runs the rows whose kind or name has one of the words; all without words."""
    every = rows()
    chosen = [
        row
        for row in every
        if not words or any(word in f"{row.kind}: {row.name}" for word in words)
    ]
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    found = {(each["kind"], each["name"]): each for each in known}
    for result in score(chosen):
        found[result["kind"], result["name"]] = result
        figures = f"{result['published']:.3f} {result['simulated']:.3f}"
        print(f"{result['kind']}: {result['name']}: {figures} {off(result):+.3f} %")
        ordered = [
            json.dumps(found[key])
            for row in every
            if (key := (row.kind, row.name)) in found
        ]
        RESULTS.write_text("[\n" + ",\n".join(ordered) + "\n]\n")


if __name__ == "__main__":
    main(sys.argv[1:])
