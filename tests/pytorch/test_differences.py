"""The tables of differences say what the tests and the documentation say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from differences import CHANGED, DIFFERENCES, NEWER, NOT_HERE
from support import ROOT

SOURCES = {
    path: path.read_text()
    for path in Path(__file__).parent.glob("test_cuda_*.py")  # PyTorch's
}
DOCUMENT = ROOT / "docs" / "pytorch_tests.md"


def rows(name: str) -> list[str]:
    """The lines of a table in the document, without its head."""
    text = DOCUMENT.read_text()
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    return text.partition(begin)[2].partition(end)[0].strip().splitlines()[2:]


def test_what_a_test_says_to_differ_stands_in_the_table_and_nothing_else():
    said = re.findall(r'differs\("(\w+)"', "".join(SOURCES.values()))
    assert sorted(set(said)) == sorted(DIFFERENCES)


def test_the_table_is_short():
    assert len(DIFFERENCES) <= 10


@pytest.mark.parametrize("name", [*NEWER, *CHANGED])
def test_what_is_newer_is_tested(name):
    assert any(f"def {name}(" in text for text in SOURCES.values())


@pytest.mark.parametrize("name", NOT_HERE)
def test_what_is_not_here_is_not_here(name):
    assert not any(f"def {name}(" in text for text in SOURCES.values())


def test_the_documents_tables_are_these():
    assert rows("differences") == [
        f"| `{name}` | {found.what} | {found.why} |"
        for name, found in DIFFERENCES.items()
    ]
    assert rows("not here") == [
        f"| `{name}` | {why} |" for name, why in NOT_HERE.items()
    ]
