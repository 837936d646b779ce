"""``python tests/mutations``: puts mistakes into the code, and asks the tests.

Each is put into a copy of the checkout, in ``build/mutations``. First come the tests
that the table names, then those of tools/touched.py: C tests without a sanitizer, C
tests with one, and, on packages that are then built, those in Python. At the end the
tests that failed run on the code as it is, where they must pass. Ends with 1 if a
mistake was not found.
"""

from __future__ import annotations

import argparse
import json
import re
import runpy
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from mutations.mutation import Mutation, is_named  # noqa: E402
from mutations.scratch import Failure, Scratch  # noqa: E402
from mutations.table import MUTATIONS  # noqa: E402

C_PROGRAM = re.compile(r"tests/test_c\.py::\w+\[\w+-(\w+)(?:-\d+)?\]")
SANITIZED = re.compile(r"tests/test_c\.py::\w+\[address-\w+\]")  # and no part of one


def program_of(test: str) -> str | None:
    """The C program that a test runs under a sanitizer, if it does."""
    found = C_PROGRAM.fullmatch(test)
    return found[1] if found else None


def ask(scratch: Scratch, mutation: Mutation, names: Iterable[str]) -> Failure | None:
    """Runs the tests of some names, C programs first; gives the first that fails."""
    names = list(names)
    tests = [test for name in names for test in scratch.tests if is_named(test, name)]
    programs = list(dict.fromkeys(filter(None, map(program_of, tests))))
    others = [test for test in dict.fromkeys(tests) if program_of(test) is None]
    if mutation.file.startswith("csrc/"):
        found = scratch.failing_program(programs)
        if found is not None:
            return found
        sanitized = [test for test in tests if SANITIZED.search(test)]
        if sanitized:
            scratch.build_programs("address", [])
            found = scratch.first_failure(sanitized)
        if found is not None:
            return found
    if others:
        scratch.build_packages(mutation)
        return scratch.first_failure(others)
    return None


def seek(scratch: Scratch, mutation: Mutation, touched: Any) -> dict[str, Any]:
    """Puts a mutation there, and gives the test that finds it."""
    started = time.monotonic()
    scratch.put(mutation)
    try:
        found = ask(scratch, mutation, mutation.asked)
        is_wider = found is None
        if found is None:
            wider = [t for t in touched([mutation.file]) if t not in mutation.asked]
            found = ask(scratch, mutation, wider)
    finally:
        scratch.restore(mutation)
    seconds = round(time.monotonic() - started)
    by, why = found or (None, None)
    return {"found_by": by, "why": why, "is_wider": is_wider, "seconds": seconds}


def describe(result: dict[str, Any]) -> str:
    """A result in a line."""
    found = result["found_by"] or "NOTHING FINDS IT"
    return f"{result['seconds']} s, {found}{' (wider)' if result['is_wider'] else ''}"


def check_found(scratch: Scratch, results: dict[str, Any]) -> list[str]:
    """The tests that found something, but fail without it, too."""
    finders = sorted({r["found_by"] for r in results.values() if r["found_by"]})
    tests = [test for test in finders if test in scratch.tests]
    if any(map(program_of, tests)):
        scratch.build_programs("address", [])
    failed = scratch.failing(tests, all_of_them=True) if tests else []
    programs = [Path(test).stem for test in finders if test.endswith(".c")]
    wrong = [scratch.failing_program([program]) for program in programs]
    return [failure.test for failure in [*failed, *filter(None, wrong)]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutations", description=__doc__)
    parser.add_argument("--list", action="store_true", help="the mutations, no run")
    parser.add_argument("--only", default="", help="a part of the name or the file")
    parser.add_argument("--out", type=Path, help="where the result goes, as JSON")
    wanted = parser.parse_args()
    chosen = {
        name: mutation
        for name, mutation in MUTATIONS.items()
        if wanted.only in name or wanted.only in mutation.file
    }
    if wanted.list:
        print(*(f"{m.file}: {name}" for name, m in chosen.items()), sep="\n")
        return 0
    scratch = Scratch(ROOT)
    touched = runpy.run_path(str(ROOT / "tools" / "touched.py"))["touched"]
    results: dict[str, Any] = {}
    for name, mutation in chosen.items():
        results[name] = {"file": mutation.file, **seek(scratch, mutation, touched)}
        print(f"{describe(results[name])}: {name}", flush=True)
        if wanted.out is not None:
            wanted.out.write_text(json.dumps(results, indent=2) + "\n")
    failing = check_found(scratch, results)
    missed = [
        name
        for name, result in results.items()
        if result["found_by"] is None or result["found_by"] in failing
    ]
    print(f"{len(results) - len(missed)} of {len(results)} found; not: {missed}")
    print(f"tests that fail without a mutation, too: {failing}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
