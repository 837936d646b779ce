"""Writes build/compile_commands.json: how each C and C++ file is compiled.

For clang-tidy, and for editors that ask clangd: setup.py's extensions as they are built
here, and the C tests.
"""

from __future__ import annotations

import json
import os
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from c_tests import Tests

ROOT = Path(__file__).parent.parent
OUT = ROOT / "build" / "compile_commands.json"


def entry(source: Path, flags: list[str]) -> dict[str, Any]:
    """One file's line."""
    cxx = source.suffix == ".cpp"
    compiler = os.environ.get("CXX", "c++") if cxx else os.environ.get("CC", "cc")
    arguments = [compiler, *flags, "-c", str(source)]
    return {"directory": str(ROOT), "file": str(source), "arguments": arguments}


def entries() -> list[dict[str, Any]]:
    """A line for each file."""
    setup = runpy.run_path(str(ROOT / "setup.py"))
    python = setup["system_includes"]([Path(sysconfig.get_paths()["include"])])
    built = [
        entry(
            ROOT / source,
            [f"-I{f}" for f in extension.include_dirs]
            + python
            + extension.extra_compile_args,
        )
        for extension in setup["extensions"]()
        for source in extension.sources
    ]
    tests = Tests(setup, "none")
    return built + [
        entry(unit.source, unit.flags) for unit in [*tests.shared, *tests.programs]
    ]


def write() -> Path:
    """Writes the file; gives its folder, as ``clang-tidy -p`` wants it."""
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(entries(), indent=1) + "\n")
    return OUT.parent


if __name__ == "__main__":
    write()
