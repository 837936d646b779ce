"""Every mistake of the zoo is named with its line, and no correct script accused.

A script of ``zoo/`` marks the line of its mistake with ``# <- leak: verdict``. Its
correct twin is the same script without the lines that are marked so, or as ``# wrong``,
and with what stands after ``# fixed:``. Each has five steps.
"""

from __future__ import annotations

import importlib
import linecache
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support import Simulated

ZOO = Path(__file__).parent / "zoo"
MARK = "# <- leak: "
SCRIPTS = sorted(path.stem for path in ZOO.glob("*.py"))
MISTAKES = [name for name in SCRIPTS if MARK in (ZOO / f"{name}.py").read_text()]
CORRECT = [
    *(f"{name}_fixed" for name in MISTAKES),
    *(name for name in SCRIPTS if "innocent" in name),
]
DISGUISES = ("renamed", "nested")
UNCHANGED = {"notebook": "nested"}  # a cell runs in the module's own namespace

simulated = Simulated("1GiB,context=0", "offload:off")


def disguised(scripts: list[str]) -> list[tuple[str, str]]:
    """These, with each disguise that changes them."""
    return [
        (script, disguise)
        for script in scripts
        for disguise in DISGUISES
        if UNCHANGED.get(script.removesuffix("_fixed")) != disguise
    ]


def source_of(name: str) -> str:
    """A script of the zoo, or the correct twin of one."""
    wrong = name.removesuffix("_fixed")
    source = (ZOO / f"{wrong}.py").read_text()
    if wrong != name:
        source = re.sub(rf"(?m)^.*(?:  {MARK}.*|  # wrong)\n", "", source)
        source = re.sub(r"(?m)^( *)# fixed: ", r"\1", source)
    return source


def watched(name: str, disguise: str | None = None) -> list[Any]:
    """What is found in a script of the zoo."""
    import oomph

    source = source_of(name)
    if disguise is not None:
        source = getattr(importlib.import_module("disguise"), disguise)(source)
    file = f"/zoo/{disguise or 'as_it_is'}/{name}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    sys.path.insert(0, str(ZOO))
    namespace: dict[str, Any] = {"__name__": "script"}
    try:
        with oomph.leaks.watch() as watch:
            exec(compile(source, file, "exec"), namespace)
        assert watch.steps == 5
        return list(watch.findings)
    finally:
        sys.path.remove(str(ZOO))
        namespace.clear()


def is_marked(finding: Any) -> bool:
    """Whether the script says the same of the same line."""
    line = finding.line
    return line is not None and linecache.getline(
        line.file, line.line
    ).rstrip().endswith(f"{MARK}{finding.verdict}")


def assert_named(name: str, disguise: str | None = None) -> None:
    found = watched(name, disguise)
    assert [is_marked(finding) for finding in found] == [True], found


def test_the_zoo_has_sixteen_mistakes_or_more_each_with_a_correct_twin():
    assert len(MISTAKES) >= 16
    for name in MISTAKES:
        fixed = source_of(f"{name}_fixed")
        assert MARK not in fixed and fixed != source_of(name).replace(MARK, "")


@pytest.mark.parametrize("script", MISTAKES)
@simulated
def test_a_mistake_is_named_with_its_line_within_five_steps(script):
    assert_named(script)


@pytest.mark.parametrize(("script", "disguise"), disguised(MISTAKES))
@simulated
def test_a_mistake_is_named_under_other_names_and_nested(script, disguise):
    assert_named(script, disguise)


@pytest.mark.parametrize("script", CORRECT)
@simulated
def test_a_correct_script_is_not_accused(script):
    assert watched(script) == []


@pytest.mark.parametrize(("script", "disguise"), disguised(CORRECT))
@simulated
def test_a_correct_script_is_not_accused_under_other_names_or_nested(script, disguise):
    assert watched(script, disguise) == []
