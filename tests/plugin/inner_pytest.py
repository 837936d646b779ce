"""Runs of pytest within tests: what became of each inner test, and what was said.

pytest's own ``pytester`` starts a run for each test; importing PyTorch takes seconds,
so that here one run serves the tests of a module.
"""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import execute

INNER = Path(__file__).parent / "inner"
_WORDS = "(PASSED|FAILED|MEMORY PROBLEMS|ERROR|XFAIL|SKIPPED)"
_OUTCOME = re.compile(  # of xdist, and without it
    rf"\[gw\d+\] \[ *\d+%\] {_WORDS} \S+\.py::(.+)|"
    rf"\S+\.py::(.+?) {_WORDS}(?: \(.*| +\[ *\d+%\])?"
)


@dataclass(frozen=True)
class Inner:
    """How a run ended.

    Attributes:
        code: pytest's exit code.
        out: What it said, both streams.
        outcomes: What became of each test, in pytest's words.
        texts: What was said of each that failed.
    """

    code: int
    out: str
    outcomes: dict[str, str]
    texts: dict[str, str]


def run_pytest(folder: Path, *arguments: str | Path, **options: Any) -> Inner:
    """Runs pytest in a folder; options as for :func:`support.execute`."""
    result = execute(
        *(sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments),
        cwd=folder,
        **{"COLUMNS": "200", **options},
    )
    said = result.out + result.err
    found = (_OUTCOME.fullmatch(line.rstrip()) for line in result.out.splitlines())
    outcomes = {m[2] or m[3]: m[1] or m[4] for m in found if m}
    return Inner(result.code, said, outcomes, _texts(result.out))


def add_tests(folder: Path, name: str) -> None:
    """Puts the tests of a file of tests/inner into a folder, for pytest to find."""
    shutil.copy(INNER / name, folder / f"test_{name}")


def _texts(out: str) -> dict[str, str]:
    """What stands under each head of the failures."""
    parts = re.split(r"^_{3,} (?:ERROR at setup of )?(.+?) _{3,}$", out, flags=re.M)
    ended = (re.split(r"^={3,} ", text, flags=re.M)[0] for text in parts[2::2])
    ended = (text.strip("\n") for text in ended)
    return dict(zip(parts[1::2], ended, strict=True))
