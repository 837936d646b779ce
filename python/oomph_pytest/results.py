"""What is reported about a whole run: the table, the stored run and the JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter
from oomph.base.tables import columns

from oomph_pytest import store
from oomph_pytest.store import FIGURES, StoredRun, growth

Measured = list[dict[str, Any]]  # of tests, as running.complete_report makes it


def _tests(measured: Measured) -> dict[str, dict[str, Any]]:
    """What the tests measured, by their names; of a repeated test the last counts."""
    return {test["nodeid"]: test for test in measured if "nodeid" in test}


def _content(measured: Measured, keys: tuple[str, ...]) -> dict[str, Any]:
    tests = _tests(measured)
    environment: dict[str, str] = next(
        (test["environment"] for test in tests.values()), {}
    )
    picked = {n: {key: test[key] for key in keys} for n, test in tests.items()}
    return {**environment, "tests": picked}


def write(config: pytest.Config, measured: Measured) -> None:
    """Stores the run, of the tests that passed, and writes its JSON."""
    option = config.option
    if option.cuda_memory_json:
        content = _content(measured, ("outcome", "figures", "metrics"))
        run = store.compared(config)
        content["compared_with"] = run.name if run else None
        store.write(Path(option.cuda_memory_json), content)
    passed = [test for test in measured if test.get("outcome") == "passed"]
    if option.cuda_memory_save is not None and passed:
        path = store.save(config, _content(passed, ("figures", "metrics")))
        config.stash[_SAVED] = path


_SAVED = pytest.StashKey[Path]()


def show(reporter: TerminalReporter, config: pytest.Config, measured: Measured) -> None:
    """Writes the table, what it is compared with, and where the run is stored."""
    tests = _tests(measured)
    if not tests:
        return
    run = store.compared(config)
    about = next(iter(tests.values()))["environment"]
    reporter.section("GPU memory")
    reporter.write_line(
        f"{about['gpu']}; PyTorch {about['torch']}, {about['allocator']}"
    )
    if run is not None:
        reporter.write_line(
            f"in brackets: since run {run.name}{_otherness(run, about)}"
        )
    for line in _table(_figure_rows(tests, run)) + _table(_metric_rows(tests, run)):
        reporter.write_line(line)
    if _SAVED in config.stash:
        path = config.stash[_SAVED]
        shown = (
            path.relative_to(config.rootpath)
            if path.is_relative_to(config.rootpath)
            else path
        )
        reporter.write_line(f"stored: {shown}")


def _otherness(run: StoredRun, about: dict[str, str]) -> str:
    """Under what else the stored run was made, if that differs."""
    other = [
        f"{name} {run.content.get(name)}"
        for name in ("gpu", "torch", "allocator")
        if run.content.get(name) != about[name]
    ]
    return f", made elsewhere: {', '.join(other)}" if other else ""


def _figure_rows(
    tests: dict[str, dict[str, Any]], run: StoredRun | None
) -> list[list[str]]:
    rows = [["test", *FIGURES]]
    for nodeid, test in sorted(tests.items()):
        before = run.test(nodeid).get("figures", {}) if run else {}
        if test["figures"]:
            cells = (
                _cell(figure.show, test["figures"][figure.key], before.get(figure.key))
                for figure in FIGURES.values()
            )
            rows.append([_short(nodeid), *cells])
    return rows


def _metric_rows(
    tests: dict[str, dict[str, Any]], run: StoredRun | None
) -> list[list[str]]:
    rows = [["test", "metric", "value"]]
    for nodeid, test in sorted(tests.items()):
        before = run.test(nodeid).get("metrics", {}) if run else {}
        for name, value in test["metrics"].items():
            shown = _cell(lambda v: f"{v:.6g}", value, before.get(name))
            rows.append([_short(nodeid), name, shown])
    return rows


def _cell(show: Any, value: Any, old: Any) -> str:
    if isinstance(value, str):  # NaN or an infinity, as a metric
        return value
    change = "" if not isinstance(old, int | float) else f" ({growth(value, old)})"
    return f"{show(value)}{change}"


def _short(nodeid: str) -> str:
    """A test's name without its file."""
    return nodeid.partition("::")[2] or nodeid


def _table(rows: list[list[str]]) -> list[str]:
    """Lines of equal columns under their heads; none if there are only heads."""
    if len(rows) == 1:
        return []
    return ["", *columns(rows, ruled=True)]
