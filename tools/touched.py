"""Which tests a change touches, as arguments for pytest: what ``make check`` runs.

A change is what differs from the last commit, or, where nothing does, the last commit.
A test touches a file if it is named after it or its folder, or imports or includes it;
each part of oomph has a few tests beside that see most of what goes wrong there.
A file that says nothing of tests, such as one that is gone, touches SAFE alone. Nothing
here knows who calls whom: before a change is handed on, all tests run.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SAFE = "tests/test_layers.py"
C_TEST = "tests/test_c.py::test_a_c_program_passes_under_a_sanitizer[address-{}]"
ALWAYS = [  # by the begin of a path
    (r"csrc/|python/", [SAFE]),
    (r"csrc/(core|driver|oomph|api\.c)", [C_TEST.format("test_alloc")]),
    (r"csrc/(core|driver|torch|python)/", ["tests/allocator/test_memory.py"]),
    (r"csrc/sim/", [C_TEST.format("sim_stream"), C_TEST.format("sim_vmm")]),
    (r"csrc/sim/values", ["tests/values/test_draws.py"]),
    (r"python/oomph/diagnosis", ["tests/diagnosis/test_shortage.py"]),
    (r"python/oomph/", ["tests/cli/test_bad_input.py", "tests/test_docstrings.py"]),
    (r"python/oomph_pytest", ["tests/plugin"]),
    (r"docs/|README|CHANGELOG|mkdocs", ["tests/test_site.py", "tests/test_errors.py"]),
    (
        r"tests/\w+\.py",
        ["tests/allocator/test_memory.py", "tests/cli/test_required.py"],
    ),
    (r"tests/c/\w+\.h|tests/c/(card|faults|harness)", [C_TEST.format("test_alloc")]),
    (r"tools/|setup\.py|pyproject", [SAFE]),
]


def changed() -> list[str]:
    """The files that differ from the last commit, or that the last commit changed."""
    ways = (
        ("diff", "--name-only", "HEAD"),
        ("ls-files", "--others", "--exclude-standard"),
        ("diff", "--name-only", "HEAD~1", "HEAD"),
    )
    found = [
        subprocess.run(
            ["git", *way], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.splitlines()
        for way in ways
    ]
    return found[0] + found[1] or found[2]


def named(path: Path) -> re.Pattern[str]:
    """How tests name a file of the sources."""
    if path.parts[0] == "csrc":
        return re.compile(rf'#include "[\w/]*\b{re.escape(path.stem)}\.h"')
    *packages, name = path.relative_to("python").with_suffix("").parts
    package = re.escape(".".join(packages))
    return re.compile(rf"{package}\.{name}\b|from {package} import [^\n]*\b{name}\b")


def tests_of(changed_file: str) -> Iterator[str]:
    """The tests that a file touches."""
    path = Path(changed_file)
    if (ROOT / path).exists():
        if re.search(r"(^|/)test_\w+\.py$", changed_file):
            yield changed_file
        if path.match("tests/c/test_*.c") or path.match("tests/c/sim_*.c"):
            yield C_TEST.format(path.stem)
    if path.parts[0] in ("csrc", "python"):
        kind = "tests/c/*_*.c" if path.parts[0] == "csrc" else "tests/*/**/test_*.py"
        for test in sorted(ROOT.glob(kind)):
            of_it = re.fullmatch(rf"\w+?_({path.stem}|{path.parent.name})", test.stem)
            if of_it or named(path).search(test.read_text()):
                name = str(test.relative_to(ROOT))
                yield C_TEST.format(test.stem) if test.suffix == ".c" else name
    for begin, more in ALWAYS:
        if re.match(begin, changed_file):
            yield from more


def touched(files: Iterable[str]) -> list[str]:
    """The tests that files touch, each once; of the long one of C the first part."""
    found = dict.fromkeys(
        test for file in files for test in [*tests_of(file)] or [SAFE]
    )
    return [test.replace("-test_faults]", "-test_faults-0]") for test in found]


if __name__ == "__main__":
    print(*touched(changed()) or [SAFE], sep="\n")
