"""What README.md and docs/ claim, and what shows it: the tables of docs/claims.md.

Each claim quotes its page word for word. What a benchmark measured is put in from
benchmarks/results, so that the page is wrong as soon as the result differs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        page: Where it stands, from the repository's root.
        quote: What it says there, word for word.
        shown_by: A test, ``path::function`` or a path.
        figure: What was measured; "": the test alone decides.
    """

    page: str
    quote: str
    shown_by: str
    figure: str = ""


@cache
def recorded() -> dict[str, dict[str, Any]]:
    """The last result of each benchmark, by its name."""
    lines = (RESULTS / "simulated.jsonl").read_text().splitlines()
    return {entry["name"]: entry for entry in map(json.loads, lines)}


@cache
def results(name: str) -> Any:
    """A file of results."""
    return json.loads((RESULTS / name).read_text())


def values(prefix: str) -> list[float]:
    """The results whose names begin so."""
    return [e["value"] for n, e in recorded().items() if n.startswith(prefix)]


def smallest_card() -> Claim:
    """Of the programs of benchmarks/programs.py."""
    name = "smallest card / max_memory_allocated"
    ours = values(name)
    hows = [e["how"] for n, e in recorded().items() if n.startswith(name)]
    native = [float(re.search(r"native ([\d.]+)", how)[1]) for how in hows]  # type: ignore[index]
    counts = {6: "six"}
    quote = (
        f"{counts[len(ours)]} programs run on cards {min(ours):.3f} to {max(ours):.3f} "
        "times as large as their tensors at the peak, where PyTorch's allocator needs "
        f"{min(native):.2f} to {max(native):.2f} times"
    )
    shown_by = "benchmarks/test_smallest_card.py::test_the_smallest_card_is_the_peak"
    return Claim("README.md", quote, shown_by, "as quoted, by bisection to 0.05 %")


def forecast() -> Claim:
    """How far the error's prediction is off."""
    worst = math.ceil(10 * max(values("predicted peak of a step"))) / 10  # at most
    quote = (
        "For GPT-2, Llama, BERT and a ViT the prediction is off by at most "
        f"{worst:.1f} %"
    )
    shown_by = "benchmarks/test_forecast.py::test_a_step_needs_what_was_predicted"
    return Claim("README.md", quote, shown_by, "as quoted, at three points of forward")


def by_hand() -> Claim:
    """How often nobody gains by editing the script."""
    points = results("offload.json")["points"]
    ways = [(point["ways"], point["fastest_by_hand"]) for point in points]
    shares = [w["oomph"]["step_ms"] / w[fastest]["step_ms"] for w, fastest in ways]
    count = sum(share <= 1.02 for share in shares)
    return Claim(
        "docs/how_offload_works.md",
        "oomph stays within 2 % of the fastest way by hand that gives the same values "
        f"at {count} of the {len(points)} points",
        "benchmarks/test_offload.py::test_a_step_is_as_fast_as_the_fastest_way_by_hand",
        f"{min(shares):.2f} to {max(shares):.2f} times the fastest way by hand, on the "
        "simulated card's clock",
    )


def same_values() -> Claim:
    """What random programs showed."""
    hunts = results("campaign.json")["hunts"]
    programs = sum(hunt["programs"] for hunt in hunts)
    found = [finding["like"] for hunt in hunts for finding in hunt["findings"]]
    assert all(like.startswith("error") for like in found)
    return Claim(
        "docs/how_offload_works.md",
        "Values do not change",
        "tests/test_campaign.py",
        f"{programs:,} random programs: no value differed, "
        f"{len(found)} ended in an error",
    )


def planted() -> Claim:
    """How soon random programs find bugs."""
    bugs = results("campaign.json")["planted"]
    assert all(bug["findings"] for bug in bugs)
    most = max(bug["programs"] for bug in bugs)
    counts = {10: "ten"}
    quote = f"all {counts[len(bugs)]} are found within {most} programs at most"
    return Claim(
        "docs/contributing.md", quote, "tests/campaign/planted.py", "as quoted"
    )


def claims() -> list[Claim]:
    """All of them."""
    readme, docs = (
        "tests/test_docs.py::test_the_demo_shows_what_the_readme_says",
        "docs",
    )
    return [
        smallest_card(),
        Claim("README.md", "`make demo` trains GPT-2 124 M", readme),
        Claim(
            "README.md", "gives the losses of a run on the CPU, digit for digit", readme
        ),
        Claim("README.md", "`torch.OutOfMemoryError` work as before", "tests/pytorch"),
        Claim(
            "README.md",
            "the error says what the whole step needs, who holds the memory and what "
            "would help",
            "tests/diagnosis/test_shortage.py::test_the_readme_shows_the_text_as_it_is",
        ),
        Claim(
            "README.md",
            "oomph records the line that allocated each block of at least 1 MiB",
            "tests/diagnosis/test_sites.py::"
            "test_a_block_knows_the_line_and_function_that_asked_for_it",
        ),
        forecast(),
        by_hand(),
        same_values(),
        Claim(
            f"{docs}/how_offload_works.md",
            "A tensor keeps its address and contents",
            "tests/allocator/test_residency.py::test_a_tensor_moves_there_and_back_at_its_address",
        ),
        Claim(
            f"{docs}/how_offload_works.md",
            "it finds the batch that it would find with `offload:off`",
            "tests/offload/test_batch_finders.py::test_a_finder_finds_what_it_would_without_host_memory",
        ),
        Claim(
            f"{docs}/how_offload_works.md",
            "A program that fits pays nothing",
            "tests/allocator/test_graph_room.py::test_a_program_that_fits_pays_nothing",
        ),
        Claim(
            f"{docs}/leaks.md",
            "If a leak grows with every step, five steps are usually enough",
            "tests/leaks/test_zoo.py::test_a_mistake_is_named_with_its_line_within_five_steps",
        ),
        Claim(
            f"{docs}/leaks.md",
            "Watching may cost at most 1 % of a step",
            "benchmarks/test_leak_watch.py::test_watching_costs_little_of_a_step",
            "limit 1 % of a step of 300 ms; no result is recorded",
        ),
        Claim(
            f"{docs}/guard.md",
            "the address is known, so one block is named",
            "tests/allocator/test_guard.py::test_a_kernel_that_uses_freed_memory_later_is_named",
        ),
        Claim(
            f"{docs}/pytest.md",
            "may add at most 5 ms to pytest's start",
            "benchmarks/test_pytest_start.py::"
            "test_the_plugin_adds_little_to_the_start_of_pytest",
            "limit 5 ms; no result is recorded",
        ),
        Claim(
            f"{docs}/architecture.md",
            "No page moves while queued work may touch it",
            "tests/allocator/test_order.py",
        ),
        Claim(
            f"{docs}/architecture.md",
            "If a driver call fails, what came before it is undone",
            "tests/c/test_faults.c",
        ),
        planted(),
    ]


def row(*cells: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def table() -> Iterable[str]:
    """The claims, with what shows each."""
    yield row("claim", "stands in", "shown by", "figure")
    yield row("---", "---", "---", "---")
    for claim in claims():
        path, _, function = claim.shown_by.partition("::")
        yield row(
            claim.quote,
            f"[{Path(claim.page).name}](../{claim.page})".replace("../docs/", ""),
            f"[{path}](../{path})" + f" `{function}`" * bool(function),
            claim.figure or "the test decides",
        )


def figures() -> Iterable[str]:
    """All recorded figures, with their limits."""
    yield row("measured", "result", "limit", "unit", "kind")
    yield row("---", "---", "---", "---", "---")
    for name, entry in recorded().items():
        value, limit = (f"{entry[key]:.4g}" for key in ("value", "limit"))
        yield row(name, value, limit, entry["unit"], entry["kind"])
