"""Runs clang-tidy over the C and C++ sources, each as it is compiled."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import compile_commands

ROOT = Path(__file__).parent.parent


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
    folder = compile_commands.write()
    tool = str(Path(sys.executable).parent / "clang-tidy")
    commands = [
        # Asserts tell the analyzer what holds.
        [tool, "--quiet", "-p", str(folder), str(path), "--extra-arg=-UNDEBUG"]
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
