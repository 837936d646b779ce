"""Runs clang-tidy over the C and C++ sources, with the flags of their build."""

from __future__ import annotations

import argparse
import os
import runpy
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent


def build_flags() -> tuple[list[str], list[str]]:
    """The arguments for C and for C++, from setup.py's own functions."""
    setup = runpy.run_path(str(ROOT / "setup.py"))
    python = ["-isystem", sysconfig.get_paths()["include"]]
    cuda = setup["system_includes"](setup["cuda_includes"]())
    torch = setup["system_includes"]([setup["package_dir"]("torch") / "include"])
    c = ["-std=c17", "-D_GNU_SOURCE", "-Icsrc", "-Icsrc/sim", *cuda, *python]
    return c, ["-std=c++20", "-Icsrc", "-Icsrc/sim", *torch, *cuda, *python]


def tidy(command: list[str]) -> tuple[int, str]:
    """Runs one check; gives its exit code and what it said about our files."""
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    return result.returncode, result.stdout


def sources() -> list[Path]:
    """What is checked: each C file, and each C++ file that includes the others."""
    return sorted([*ROOT.glob("csrc/**/*.c"), *ROOT.glob("csrc/**/*.cpp")])


def main() -> int:
    """Checks the files named, or all; gives 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="all if none is named")
    files = [path.resolve() for path in parser.parse_args().files] or sources()
    os.chdir(ROOT)
    c_flags, cxx_flags = build_flags()
    tool = str(Path(sys.executable).parent / "clang-tidy")
    commands = [
        [tool, "--quiet", str(path), "--"]
        + (cxx_flags if path.suffix == ".cpp" else c_flags)
        for path in files
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(tidy, commands))
    for code, text in results:
        if code != 0:
            print(text)
    return int(any(code != 0 for code, _ in results))


if __name__ == "__main__":
    raise SystemExit(main())
