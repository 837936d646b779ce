"""The tables of docs/checked.md, from benchmarks/results/published.json."""

from __future__ import annotations

import ast
import json
import math
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from functools import cache, partial
from itertools import combinations
from typing import Any

from claims import ROOT, row

PUBLISHED = ROOT / "benchmarks" / "published"
sys.path.insert(0, str(PUBLISHED))

import bars  # noqa: E402
import score  # noqa: E402

Result = dict[str, Any]


@cache
def results() -> dict[str, list[Result]]:
    """The results of each kind."""
    found: dict[str, list[Result]] = {}
    for result in json.loads(score.RESULTS.read_text()):
        found.setdefault(result["kind"], []).append(result)
    return found


def note_of(result: Result) -> str:
    """Why a row is off, if that is known."""
    texts = [
        text
        for (kind, name), text in bars.NOTES.items()
        if result["kind"] == kind and result["name"].startswith(name)
    ]
    assert len(texts) <= 1, result["name"]
    return texts[0] if texts else ""


def percent(value: float) -> str:
    """A difference, with as many digits as say something."""
    return f"{value:+.3f} %" if abs(value) < 1 else f"{value:+.2f} %"


def summary() -> Iterable[str]:
    """A line for each kind: how many rows, and how far they are off."""
    yield row("what was measured", "rows", "median", "worst", "worst but notes", "bar")
    yield row(*["---"] * 6)
    for kind, bar in bars.BARS.items():
        found = results()[kind]
        amounts = [abs(score.off(each)) for each in found]
        plain = [abs(score.off(each)) for each in found if not note_of(each)]
        yield row(
            kind,
            str(len(found)),
            f"{statistics.median(amounts):.3f} %",
            f"{max(amounts):.2f} %",
            f"{max(plain):.3f} % of {len(plain)}",
            f"{bar.median:g} %, {bar.worst:g} %",
        )


def rows_of(kind: str) -> Iterable[str]:
    """Each row of a kind of memory, in MiB."""
    found = results()[kind]
    yield row("what", "published", "simulated", "difference", "source")
    yield row(*["---"] * 5)
    for each in found:
        note = note_of(each)
        mark = f" ({number_of(note)})" if note else ""
        yield row(
            each["name"],
            f"{each['published']:,.3f}",
            f"{each['simulated']:,.3f}",
            percent(score.off(each)) + mark,
            re.sub(r".*[:/]", "", each["source"]),
        )


def beside_compiled() -> Iterable[str]:
    """What the process held besides, row by row, in MiB."""
    yield row("what", "published", "simulated", "held besides", "source")
    yield row(*["---"] * 5)
    for each in results()[bars.BESIDE_COMPILED]:
        yield row(
            each["name"],
            f"{each['published']:,.3f}",
            f"{each['simulated']:,.3f}",
            f"{each['published'] - each['simulated']:,.3f}",
            re.sub(r".*[:/]", "", each["source"]),
        )


def number_of(note: str) -> int:
    """Of a note: what stands behind a difference in brackets."""
    return [*dict.fromkeys(bars.NOTES.values())].index(note) + 1


def notes() -> Iterable[str]:
    """Why rows are off."""
    for number, text in enumerate(dict.fromkeys(bars.NOTES.values()), 1):
        yield f"{number}. {text}"


def kernels() -> Iterable[str]:
    """What was rebuilt of each kernel."""
    extract = {each["kernel"]: each for each in score.read("liger.csv")}
    yield row("kernel", "what was rebuilt", "configuration of its rows")
    yield row(*["---"] * 3)
    for name, docstring in docstrings().items():
        config = extract[name]["config"].replace("torch.", "").replace('"', "")
        yield row(f"`{name}`", docstring, f"`{config}`")


def docstrings() -> dict[str, str]:
    """The first sentence of each kernel's function."""
    tree = ast.parse((PUBLISHED / "kernels.py").read_text())
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    (table,) = (n for n in tree.body if isinstance(n, ast.AnnAssign) and n.value)
    assert isinstance(table.value, ast.Dict)
    pairs = zip(table.value.keys, table.value.values, strict=True)
    return {
        key.value: ast.get_docstring(functions[value.id]) or ""  # type: ignore
        for key, value in pairs
    }


def times() -> Iterable[str]:
    """How far the virtual clock is off, by halves and by GPUs."""
    found = results()[bars.TIME]
    yield row(
        "rows", "count", "median", "simulated / published", "within 1.5 x", "pairs"
    )
    yield row(*["---"] * 6)
    for half in ("first", "second"):
        yield times_of(
            f"{half} half", [e for e in found if score.half_of(e["name"]) == half]
        )
    for gpu in dict.fromkeys(map(gpu_of, found)):
        yield times_of(gpu, [e for e in found if gpu_of(e) == gpu])
    for name, least, end in (
        ("less than 0.2 ms", 0.0, 0.2),
        ("0.2 to 2 ms", 0.2, 2.0),
        ("2 ms and more", 2.0, math.inf),
    ):
        yield times_of(name, [e for e in found if least <= e["published"] < end])


def times_of(name: str, found: Sequence[Result]) -> str:
    """A line of figures."""
    ratios = [each["simulated"] / each["published"] for each in found]
    near = sum(1 / 1.5 <= ratio <= 1.5 for ratio in ratios)
    return row(
        name,
        str(len(found)),
        f"{statistics.median(abs(ratio - 1) for ratio in ratios) * 100:.0f} %",
        f"{statistics.median(ratios):.2f}",
        f"{near / len(found) * 100:.0f} %",
        f"{in_order(found) * 100:.0f} %",
    )


def in_order(found: Sequence[Result]) -> float:
    """The share of pairs of rows of one card of which the faster is told right."""
    right = [
        (a["published"] < b["published"]) == (a["simulated"] < b["simulated"])
        for a, b in combinations(found, 2)
        if gpu_of(a) == gpu_of(b)
    ]
    return statistics.mean(right)


def gpu_of(result: Result) -> str:
    """The card that a row was measured on."""
    return result["name"].rpartition(", ")[2]


def times_by_kernel(kind: str) -> Iterable[str]:
    """The ratio of simulated to published times, kernel by kernel."""
    by_kernel: dict[str, list[Result]] = {}
    for each in results()[kind]:
        by_kernel.setdefault(each["name"].partition(",")[0], []).append(each)
    yield row("kernel", "rows", "published, ms", "simulated / published")
    yield row(*["---"] * 4)
    for name, found in by_kernel.items():
        ratios = sorted(each["simulated"] / each["published"] for each in found)
        ms = [each["published"] for each in found]
        yield row(
            name,
            str(len(found)),
            f"{min(ms):.3g} to {max(ms):.3g}",
            f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
        )


TABLES = {
    "summary": summary,
    "kernels": kernels,
    "notes": notes,
    "times": times,
    "times by kernel": partial(times_by_kernel, bars.TIME),
    "times of older kernels": partial(times_by_kernel, bars.OF_OLDER_KERNELS),
    bars.BESIDE_COMPILED: beside_compiled,
    **{kind: partial(rows_of, kind) for kind in (*bars.BARS, "context memory")},
}
