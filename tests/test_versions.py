"""What is said of each version of PyTorch follows from what ran there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

sys.path.insert(0, str(ROOT / "tools" / "versions"))
import environments
import page
import suites

REPORT = """<testsuites><testsuite>
<testcase classname="tests.pytorch.test_a" name="test_one[native]@group" time="1" />
<testcase classname="tests.pytorch.test_a" name="test_one[oomph]@group" time="1">
<failure message="it differs">the traceback</failure></testcase>
<testcase classname="tests.pytorch.test_a" name="test_two[oomph]" time="1">
<skipped type="pytest.xfail" message="PyTorch has it from 2.13 on" /></testcase>
<testcase classname="tests.pytorch.test_a" name="test_three" time="1">
<skipped type="pytest.skip" message="there is no card" /></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def result() -> dict[str, Any]:
    """Of a version on which one test failed."""
    test = next(iter(page.NEWER))
    own = suites.read_report(REPORT.replace("test_two", test))
    return {
        "torch": "2.10.0+cu128",
        "cuda": "13.0",
        "python": "3.11.7",
        "checks": {"installs": "", "streams": "RuntimeError: no"},
        "suites": {suites.OWN_TESTS: own},
    }


def test_a_report_says_what_failed_and_why_others_did_not_run():
    assert suites.read_report(REPORT) == {
        "passed": 1,
        "failed": ["tests.pytorch.test_a.test_one[oomph]"],
        "not_run": {"PyTorch has it from 2.13 on": 1, "there is no card": 1},
        "tests": {
            "test_one": "failed",
            "test_two": "expected",
            "test_three": "skipped",
        },
    }


def test_the_page_says_what_works_fails_and_was_not_run(result):
    since, what = next(iter(page.NEWER.values()))
    text = page.page({"2.10": result})
    for line in (
        "| installs | yes |",
        "| streams | no: RuntimeError: no |",
        "| `tests/values` | not run |",
        f"| {suites.OWN_TESTS} | 1 passed, 1 failed, 2 not there |",
        f"| {what} | from {since} |",
        f"* PyTorch 2.10, {suites.OWN_TESTS}: `tests.pytorch.test_a.test_one[oomph]` "
        "fails",
        f"* PyTorch 2.10, {suites.OWN_TESTS}: 1 tests: there is no card",
    ):
        assert line in text.splitlines()


def test_what_fails_with_pytorchs_allocator_too_is_told_apart(result):
    own = result["suites"][suites.OWN_TESTS]
    own["failed"] = [f"test_a.test_one[{way}-1]" for way in ("native", "oomph")]
    text = page.page({"2.10": result})
    assert (
        f"| {suites.OWN_TESTS} | 1 passed, 2 fail with PyTorch's allocator, too" in text
    )
    assert "`test_a.test_one[oomph-1]` fails, with PyTorch's allocator, too" in text
    assert "`test_a.test_one[native-1]`" not in text


def test_the_committed_page_is_that_of_the_committed_results():
    results = json.loads((ROOT / "benchmarks/results/versions.json").read_text())
    assert (ROOT / "docs" / "versions.md").read_text() == page.page(results)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2.15", environments.Wanted("2.15")),
        ("2.11=.venv", environments.Wanted("2.11", owner=Path(".venv"))),
        ("3.12:2.11", environments.Wanted("2.11", python="3.12")),
    ],
)
def test_versions_are_named_in_three_ways(text, wanted):
    assert environments.Wanted.of(text) == wanted


def test_what_names_no_version_is_told_so():
    with pytest.raises(SystemExit, match="newest: give 2.15, 2.11=FOLDER or 3.12:2.11"):
        environments.Wanted.of("newest")
