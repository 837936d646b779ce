"""Figures: what a benchmark measured, held against its limit, kept as a JSON line."""

from __future__ import annotations

import datetime
import json
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import pytest

DEFAULT_RECORD = Path(__file__).parent.parent / "build" / "benchmarks.jsonl"
lines: list[str] = []


@dataclass(frozen=True)
class Figure:
    """One result.

    Attributes:
        name: What was measured.
        value: The result.
        limit: What it must not exceed.
        unit: Of both.
        kind: ``deterministic`` (bytes, calls, instructions), ``paired`` (alternating
            runs in one session), ``timed`` (the best of several runs) or ``computed``
            (by the simulated card's clock; how far the program runs ahead of the card
            differs a little from run to run).
        how: How it was measured, with what lies behind the value.
    """

    name: str
    value: float
    limit: float
    unit: str
    kind: str
    how: str


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record",
        type=Path,
        default=DEFAULT_RECORD,
        help="file that every figure is appended to, as a JSON line",
    )
    parser.addoption(
        "--tables",
        type=Path,
        default=DEFAULT_RECORD.parent,
        help="folder for the tables of benchmarks that compare",
    )


@pytest.fixture
def figure(request: pytest.FixtureRequest):
    """Records a figure and fails the benchmark if it exceeds its limit."""
    record: Path = request.config.getoption("--record")

    def keep(**values: object) -> None:
        result = Figure(**values)
        entry = {
            **asdict(result),
            "date": datetime.date.today().isoformat(),
            "oomph": metadata.version("oomph"),
            "torch": metadata.version("torch"),
            "machine": platform.machine(),
        }
        record.parent.mkdir(parents=True, exist_ok=True)
        with record.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        lines.append(
            f"{result.name}: {result.value:.4g} {result.unit} "
            f"(limit {result.limit:.4g}; {result.how})"
        )
        assert result.value <= result.limit, lines[-1]

    return keep


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)
