"""The script that a command runs, as its command line names it."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds ``-m``, ``script`` and ``args`` after a command's own options."""
    parser.add_argument(
        "-m",
        action="store_true",
        dest="module",
        help="SCRIPT is the name of a module, as for python -m",
    )
    parser.add_argument("script", help="the script, or the module with -m")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")


def check_script(path: str) -> None:
    """Looks whether a file may be one, before it is run.

    Raises:
        ValueError: It is none; the text says what it is.
    """
    file = Path(path)
    if path and file.is_dir():
        raise ValueError(f"{path} is a folder, and no script")
    if not path or not file.is_file():
        raise ValueError(f"there is no file {path}")
    if file.suffix == ".ipynb":
        raise ValueError(
            f"{path} is a notebook, and no script: jupyter nbconvert --to script makes "
            "one of it"
        )
    with file.open("rb") as opened:
        first = opened.readline(1000)
    if not first.startswith(b"#!") or b"python" in first:
        return
    try:
        compile(file.read_bytes(), path, "exec")
    except (SyntaxError, ValueError):
        named = first.decode(errors="replace").strip()
        raise ValueError(
            f"{path} is no Python script (it begins with {named}): name the one that "
            "it starts"
        ) from None
