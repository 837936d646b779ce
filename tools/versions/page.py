"""The results of all versions as a page of the documentation."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checks import CHECKS
from suites import OWN_TESTS, SUITES, failed_both_ways

ROOT = Path(__file__).parent.parent.parent
NEWER = runpy.run_path(str(ROOT / "tests" / "pytorch" / "differences.py"))["NEWER"]
NEWER_TESTS = (ROOT / "tests" / "pytorch" / "test_cuda_newer.py").read_text()
NOT_RUN = "not run"

TEXT = (
    "# Versions of PyTorch\n\n"
    "One wheel serves each PyTorch from 2.10 to 2.15, built for CUDA 12 or 13, and "
    "each Python from 3.10 on. `make test-versions` installs it beside each PyTorch in "
    "a fresh environment, runs these checks and tests there on the simulated GPU, and "
    "writes this page. The checks find no compiler.\n\n"
    "{checks}\n\n"
    "Times are those of the processor beyond PyTorch's own import, each the median "
    "of several processes.\n\n"
    "## By feature\n\n"
    "What came after 2.10, each by a test of `tests/pytorch` that runs with PyTorch's "
    "allocator and with oomph. *from 2.13* means that this PyTorch does not have it: "
    "the test must fail there with PyTorch's allocator, too.\n\n"
    "{features}\n\n"
    "oomph rejects no request in advance, so `num_oom_rejections` stays 0.\n\n"
    "## What fails, and what was not run\n\n"
    "{left}\n\n"
    "For another PyTorch, such as a nightly, oomph builds what is missing once, where "
    "there is a C++ compiler: see [error texts](errors.md#installing).\n"
)


def _order(name: str) -> list[int]:
    """Names of results as they are sorted."""
    torch, _, python = name.partition(", Python ")
    return [int(part) for part in (*torch.split("."), *python.split(".")) if part]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _rows(head: list[str], body: Iterator[list[str]]) -> str:
    """A table."""
    return "\n".join(_row(*cells) for cells in [head, ["---"] * len(head), *body])


def _count(suite: dict[str, Any] | None) -> str:
    """How many tests of a suite ended how."""
    if suite is None:
        return NOT_RUN
    said = [f"{suite['passed']} passed"]
    both = len(failed_both_ways(suite["failed"]))
    if len(suite["failed"]) > both:
        said.append(f"{len(suite['failed']) - both} failed")
    if both:
        said.append(f"{both} fail with PyTorch's allocator, too")
    left = sum(suite["not_run"].values())
    if left:
        said.append(f"{left} not there")
    return ", ".join(said)


def _demo(found: dict[str, Any]) -> str:
    """How the demo ended."""
    if "demo" not in found:
        return NOT_RUN
    ended = found["demo"]
    ours = [how for run, how in ended.items() if run.endswith(", oomph")]
    return f"{ours.count('finished')} of {len(ours)} programs go on"


def _checks(results: dict[str, Any], names: list[str]) -> Iterator[list[str]]:
    """The rows of what was checked."""
    all_ = [results[name] for name in names]
    yield ["CUDA", *(found["cuda"] for found in all_)]
    yield ["Python", *(found["python"] for found in all_)]
    for check in CHECKS:
        errors = [found["checks"].get(check) for found in all_]
        yield [check, *("yes" if e == "" else f"no: {e or NOT_RUN}" for e in errors)]
    for suite in SUITES:
        yield [suite, *(_count(found.get("suites", {}).get(suite)) for found in all_)]
    yield ["`examples/demo.py`", *(_demo(found) for found in all_)]
    times = [found.get("import_ms") or [NOT_RUN, NOT_RUN] for found in all_]
    yield ["`import oomph`, ms", *(str(ms[0]) for ms in times)]
    yield ["until it is installed, ms", *(str(ms[1]) for ms in times)]


def _feature(found: dict[str, Any], test: str, since: str) -> str:
    """Whether a version has what a test is about."""
    outcome = found["suites"].get(OWN_TESTS, {}).get("tests", {}).get(test, NOT_RUN)
    failed = found["suites"].get(OWN_TESTS, {}).get("failed", [])
    ours = {name for name in failed if f".{test}[" in name} - failed_both_ways(failed)
    no = "no" if ours else "the test fails with both"
    is_there = _order(found["torch"].partition("+")[0])[:2] >= _order(since)
    lacking = "otherwise, see below" if is_there else f"from {since}"
    words = {"passed": "yes", "expected": lacking, "failed": no}
    return words.get(outcome, outcome)


def _features(results: dict[str, Any], names: list[str]) -> Iterator[list[str]]:
    """The rows of what came when."""
    told = set()
    for test, (since, what) in NEWER.items():
        if what not in told:
            told.add(what)
            yield [what, *(_feature(results[name], test, since) for name in names)]


def _left(results: dict[str, Any], names: list[str]) -> Iterator[str]:
    """What failed, and the reasons of what was not run."""
    for name in names:
        for suite, found in results[name]["suites"].items():
            both = failed_both_ways(found["failed"])
            for failed in found["failed"]:
                if failed in both and "[native" in failed:
                    continue
                why = ", with PyTorch's allocator, too" if failed in both else ""
                yield f"* PyTorch {name}, {suite}: `{failed}` fails{why}"
            for why, count in found["not_run"].items():
                yield f"* PyTorch {name}, {suite}: {count} tests: {why}"


def page(results: dict[str, Any]) -> str:
    """The page as Markdown."""
    names = sorted(results, key=_order)
    tested = [name for name in names if "suites" in results[name]]
    return TEXT.format(
        checks=_rows(
            ["PyTorch", *(results[name]["torch"] for name in names)],
            _checks(results, names),
        ),
        features=_rows(
            ["what", *(f"PyTorch {name}" for name in tested)],
            _features(results, tested),
        ),
        left="\n".join(_left(results, tested)) or "Nothing.",
    )
