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
def entered(tmp_path_factory) -> list[str]:
    """The files of the core, in the order in which a request enters them first."""
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
    libraries = [library, f"-Wl,-rpath,{library.parent}", "-lpthread", "-ldl"]
    link = [compiler, *flags, PROGRAM, *objects, *libraries, "-o", program]
    subprocess.run(link, check=True)
    ran = execute(program)
    assert ran.code == 0, ran.err
    home = home_of(program)
    found = [home[int(line, 16)] for line in ran.out.splitlines()]
    return list(dict.fromkeys(found))


def home_of(program: Path) -> dict[int, str]:
    """The file of each function, by its address."""
    listed = execute("nm", "--line-numbers", program).out
    found = re.findall(r"^(\w+) [tT] \w+\t.*?/csrc/(.*):\d+$", listed, re.M)
    return {int(address, 16): name for address, name in found}


def returns(folders: list[str]) -> int:
    """How often a folder above the one before comes next."""
    floors = list(map(FLOORS.index, folders))
    return sum(after > before for before, after in pairwise(floors))


def test_a_request_enters_the_folders_as_the_page_says(entered):
    order = list(dict.fromkeys(map(folder, entered)))
    order.remove("core/base")  # errors, sizes and counters, which all use
    reported = " → ".join(f"`{name}`" for name in order)
    assert reported in PAGE.read_text()
    assert returns(order) <= RETURNS_MAX
