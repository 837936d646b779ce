"""Runs the wheel as a stranger does, with each PyTorch, and writes what works.

For each version a fresh environment gets that PyTorch and the wheel from dist/, and is
removed afterwards: 5 GB each. A version may also be the folder of an environment that
is there already: that of CI, where all tests run. The checks find no compiler. After
them tests of this repository run, and the demo; with another Python, the checks alone.

    python tools/versions/try_versions.py 2.10 2.11=.venv 2.15
    python tools/versions/try_versions.py 3.10:2.11 3.13:2.11

Results are kept in benchmarks/results/versions.json, those of other versions as they
are, and shown in docs/versions.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from checks import CARD, CHECKS
from environments import Environment, Wanted, borrow, make
from page import page
from suites import (
    OWN_TESTS,
    ROOT,
    SUITES,
    failed_both_ways,
    run_demo,
    run_suite,
    tools,
)

RESULTS = ROOT / "benchmarks" / "results" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"


def examine(environment: Environment, wheel: Path) -> dict[str, Any]:
    """What works in an environment, by the checks."""
    found = {name: environment.run(code, CARD) for name, code in CHECKS.items()}
    # Without a card and without a driver oomph's class goes in all the same.
    found["installs"] = environment.run(CHECKS["installs"], None)
    return {
        "oomph": environment.tell("oomph.__version__"),
        "torch": environment.tell("torch.__version__"),
        "cuda": environment.tell("torch.version.cuda"),
        "python": environment.tell("platform.python_version()"),
        "import_ms": [] if found["installs"] else environment.import_ms(),
        "wheel_bytes": wheel.stat().st_size,
        "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "date": date.today().isoformat(),
        "checks": found,
    }


def suites_for(wanted: Wanted) -> dict[str, list[str]]:
    """The tests that run with a version, by name."""
    if wanted.python:
        return {}
    return SUITES if wanted.owner is None else {OWN_TESTS: SUITES[OWN_TESTS]}


def test(
    environment: Environment, wanted: Wanted, found: dict[str, Any], jobs: int
) -> Iterator[str]:
    """Adds what the tests and the demo say, and gives a line for each."""
    place = environment.tell("oomph.__file__")
    if not Path(place).is_relative_to(environment.python.parent.parent):
        raise SystemExit(f"{place} is not the wheel's oomph")
    found["suites"] = {}
    for name, paths in suites_for(wanted).items():
        suite = run_suite(environment, paths, jobs)
        found["suites"][name] = suite
        count = len({*suite["failed"]} - failed_both_ways(suite["failed"]))
        found["checks"][name] = f"{count} tests fail" if count else ""
        yield f"{name}: {suite['passed']} passed, {count} failed"
    found["checks"]["demo"], found["demo"] = run_demo(environment)
    yield f"demo: {found['demo']}"


def try_version(wanted: Wanted, wheel: Path, jobs: int) -> Iterator[dict[str, Any]]:
    """What works with a version, and again as more of it is known."""
    folder = Path(tempfile.mkdtemp(prefix=f"oomph-{wanted.torch}-"))
    try:
        if wanted.owner is not None:
            environment = borrow(folder, wanted.owner, wheel)
        else:
            needed = [] if wanted.python else tools()
            environment = make(folder, wanted, wheel, needed)
        found = examine(environment, wheel)
        print(f"PyTorch {wanted.name}: {found['checks']}", flush=True)
        yield found
        if not wanted.python:
            for line in test(environment, wanted, found, jobs):
                print(f"PyTorch {wanted.name}: {line}", flush=True)
                yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keep(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Writes a result and the page, beside what others have written; gives all."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[name] = found
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(results))
    return results


def main() -> int:
    """Tries the versions named; gives 1 if anything does not work."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "versions",
        nargs="+",
        type=Wanted.of,
        help="such as 2.15, 2.11=FOLDER, or 3.12:2.11 for another Python",
    )
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time")
    options = parser.parse_args()
    (wheel,) = (ROOT / "dist").glob("oomph-*.whl")
    results: dict[str, Any] = {}
    for wanted in options.versions:
        for found in try_version(wanted, wheel, options.jobs):
            results = keep(wanted.name, found)
    return int(any(any(found["checks"].values()) for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())
