"""The way of one request through csrc, as docs/architecture.md tells it."""

import os
import re
import runpy
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from support import ROOT, build_description, execute
from test_layers import FLOORS, folder

PROGRAM = ROOT / "tests" / "walk" / "request.c"
PAGE = ROOT / "docs" / "architecture.md"
RETURNS_MAX = 2


@pytest.fixture(scope="module")
def calls(tmp_path_factory) -> list[tuple[str, int]]:
    """All calls of a request, in their order: the file, and the depth of the call."""
    out = tmp_path_factory.mktemp("walk")
    tools = runpy.run_path(str(ROOT / "tools" / "c_tests.py"))
    tests = tools["Tests"](build_description(), "none")
    library = tools["build"]("none", ["libcuda.so.1"]) / "libcuda.so.1"
    compiler = os.environ.get("CC", "cc")
    objects = []
    for unit in [*tests.core, *tests.shared]:
        objects.append(out / f"{len(objects)}.o")
        follow = ["-finstrument-functions"] if unit in tests.core else []
        how = [*unit.flags, "-O0", "-g", *follow, "-c", unit.source, "-o", objects[-1]]
        subprocess.run([compiler, *how], check=True)
    program = out / "request"
    flags = [*tests.shared[0].flags, f"-I{ROOT / 'tests' / 'c'}", "-no-pie", "-g"]
    given = build_description()["C_LIBRARIES"]
    libraries = [library, f"-Wl,-rpath,{library.parent}", *given]
    link = [compiler, *flags, PROGRAM, *objects, *libraries, "-o", program]
    subprocess.run(link, check=True)
    ran = execute(program)
    assert ran.code == 0, ran.err
    home = home_of(program)
    rows = [line.split() for line in ran.out.splitlines()]
    return [(home[int(address, 16)], int(depth)) for address, depth in rows]


def home_of(program: Path) -> dict[int, str]:
    """The file of each function, by its address."""
    listed = execute("nm", "--line-numbers", program).out
    found = re.findall(r"^(\w+) [tT] \w+\t.*?/csrc/(.*):\d+$", listed, re.M)
    return {int(address, 16): name for address, name in found}


def returns(folders: list[str]) -> int:
    """How often a folder above the one before comes next."""
    floors = list(map(FLOORS.index, folders))
    return sum(after > before for before, after in pairwise(floors))


def folders(calls: list[tuple[str, int]]) -> list[str]:
    """Those of all calls; without errors, sizes and counters, which all use."""
    return [name for name in (folder(f) for f, _ in calls) if name != "core/base"]


def test_a_request_enters_the_folders_as_the_page_says(calls):
    order = list(dict.fromkeys(folders(calls)))
    reported = " → ".join(f"`{name}`" for name in order)
    assert reported in PAGE.read_text()
    assert returns(order) <= RETURNS_MAX


def test_the_page_says_how_often_all_calls_return(calls):
    said = re.search(
        r"(\d+) calls enter\s+a higher folder (\d+) times", PAGE.read_text()
    )
    passed = folders(calls)
    found = len(passed), returns(passed)
    assert said is not None
    assert list(map(int, said.groups())) == pytest.approx(found, rel=0.1)


def test_no_call_goes_up(calls):
    """Function pointers included, which the symbols of test_layers.py do not show."""
    up, callers = [], []
    for name, depth in calls:
        del callers[depth:]
        callers.append(name)
        floors = [FLOORS.index(folder(f)) for f in callers[-2:]]
        if floors[-1] > floors[0]:
            up.append(callers[-2:])
    assert len(calls) > 500 and up == []
