"""The script that a command runs, as its command line names it."""

from __future__ import annotations

import argparse


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
