"""Runs tests of this repository on the wheel that an environment has."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

from environments import Environment

ROOT = Path(__file__).parent.parent.parent
OWN_TESTS = "PyTorch's own tests"
SUITES = {  # what takes longest comes last
    OWN_TESTS: ["tests/pytorch"],
    "several streams": [
        "tests/allocator/test_streams.py",
        "tests/allocator/test_order.py",
    ],
    # Programs of other libraries, of which not all are there for each PyTorch, run
    # with the one of CI.
    "`tests/values`": [
        *("tests/values", "--ignore=tests/values/test_library_programs.py"),
    ],
}
TIMEOUT_S = 3600
# Of the tools in pyproject.toml, what these tests need.
NEEDED = (
    *("pytest", "pytest-xdist", "hypothesis", "expecttest", "scipy", "ninja"),
    "transformers",
)


def tools() -> list[str]:
    """The requirements of the tests."""
    text = (ROOT / "pyproject.toml").read_text()
    found = {
        name: f"{name}=={pin}" for name, pin in re.findall(r'"([\w-]+)==(.+?)"', text)
    }
    return ["setuptools", "torchvision", *(found[name] for name in NEEDED)]


def _variables(environment: Environment) -> dict[str, str]:
    """Tests compile programs of their own; the interpreter is the environment's."""
    bin_ = environment.python.parent
    return environment.variables(f"{bin_}{os.pathsep}{os.environ['PATH']}")


def _run(
    environment: Environment, *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    """Runs an environment's Python in this repository."""
    return subprocess.run(
        [environment.python, *arguments],
        cwd=ROOT,
        env=_variables(environment),
        timeout=TIMEOUT_S,
        capture_output=True,
        text=True,
        check=False,
    )


def _outcome(case: ET.Element) -> tuple[str, str]:
    """How a test ended, and why if it did not pass."""
    for element in case:
        if element.tag in ("failure", "error"):
            return "failed", element.get("message", "")
        if element.tag == "skipped":
            expected = "xfail" in element.get("type", "")
            return "expected" if expected else "skipped", element.get("message", "")
    return "passed", ""


def read_report(report: str) -> dict[str, Any]:
    """A JUnit report as the results have it.

    Returns:
        How many tests passed; the names of those that failed; how many were skipped or
        had to fail, by the reason; and by test, without parameters, how each ended.
    """
    passed, failed, reasons = 0, [], Counter[str]()
    tests: dict[str, str] = {}
    for case in ET.fromstring(report).iter("testcase"):
        name = str(case.get("name"))
        outcome, why = _outcome(case)
        passed += outcome == "passed"
        if outcome == "failed":
            failed.append(f"{case.get('classname')}.{name}".partition("@")[0])
        elif outcome != "passed":
            reasons[" ".join(why.split())] += 1
        plain = name.partition("[")[0].partition("@")[0]
        if tests.get(plain, "passed") != "failed":
            tests[plain] = outcome
    return {
        "passed": passed,
        "failed": sorted(failed),
        "not_run": dict(sorted(reasons.items())),
        "tests": tests,
    }


def failed_both_ways(failed: list[str]) -> set[str]:
    """Those that fail with PyTorch's own allocator as they do with oomph.

    This PyTorch does otherwise than the one that the test was written for then, or the
    simulated GPU does not do for it what it needs.
    """

    def twin(name: str) -> str:
        if "[native" in name:
            return name.replace("[native", "[oomph")
        return name.replace("[oomph", "[native")

    return {name for name in failed if twin(name) != name and twin(name) in failed}


def run_suite(environment: Environment, paths: list[str], jobs: int) -> dict[str, Any]:
    """Runs tests; gives what their report says."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        began = time.monotonic()
        done = _run(
            environment,
            *("-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-n", str(jobs), "--dist", "loadgroup", f"--junitxml={report}", *paths),
        )
        if not report.exists():
            raise SystemExit(f"pytest did not run:\n{done.stdout}{done.stderr}")
        seconds = round(time.monotonic() - began)
        return {**read_report(report.read_text()), "seconds": seconds}


def run_demo(environment: Environment) -> tuple[str, dict[str, str]]:
    """Runs the demo; gives what went wrong, and how each program ended."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "demo.json"
        done = _run(environment, "examples/demo.py", "--json", table)
        rows = json.loads(table.read_text()) if table.exists() else []
    outcomes = {f"{row['program']}, {row['allocator']}": row["outcome"] for row in rows}
    said = done.stderr.strip().splitlines()[-1:] or ["see what oomph did not finish"]
    return said[0] if done.returncode else "", outcomes
