"""The subcommand ``oomph doctor``: its options, and its exit codes."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from oomph.doctor.finder import Search

_HELP = """\
Finds out-of-memory errors in a log, and says of each what its numbers mean, what helps
and what cannot. It reads only the log, and needs no GPU. The exit code is 0 if there
are such errors, 1 if there are none, and 2 if the log cannot be read.
"""
_PACKED = {
    b"\x1f\x8b": "zcat",
    b"BZh": "bzcat",
    b"\xfd7zXZ": "xzcat",
    b"(\xb5/\xfd": "zstdcat",
}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand to those of ``oomph``."""
    doctor = commands.add_parser(
        "doctor", help="explain the out-of-memory errors of a log", description=_HELP
    )
    doctor.add_argument("--json", action="store_true", help="write all as JSON")
    doctor.add_argument(
        "--sop",
        action="store_true",
        help="show the standard procedure as a checklist, ticked as far as this "
        "machine and the log show it; without FILE no log is read",
    )
    doctor.add_argument(
        "file", metavar="FILE", nargs="?", help="a log; -: standard input"
    )


def run(options: argparse.Namespace) -> int:
    """Explains a log; gives the exit code.

    Raises:
        ValueError: The log cannot be read; the text says why.
    """
    from oomph.doctor.finder import search  # other commands need no patterns

    if options.sop and options.file is None:
        found, name = None, ""
    else:
        name = options.file or "-"
        with _opened(name) as file:
            found = search(file)
        name = "standard input" if name == "-" else name
    try:
        return _say(options, found, name)
    except BrokenPipeError:  # such as by head; Python would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _say(options: argparse.Namespace, found: Search | None, name: str) -> int:
    if options.sop:
        from oomph.doctor import sop

        steps = sop.steps(found)
        said = (
            json.dumps(sop.data(steps), indent=1) if options.json else sop.text(steps)
        )
        print(said, flush=True)
        return 0
    from oomph.doctor import report

    assert found is not None
    place = report.in_log(name)
    if options.json:
        print(json.dumps(report.data(found, name, place), indent=1), flush=True)
    elif found.errors:
        print(report.text(found, place), flush=True)
    else:
        print(report.nothing_found(found, name), flush=True)
    return 0 if found.errors else 1


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    try:
        if name == "-":
            if sys.stdin.isatty():
                print("oomph: reading standard input; Ctrl-D ends it", file=sys.stderr)
            yield sys.stdin.buffer
            return
        with open(name, "rb") as file:
            start = file.read(4)
            for mark, program in _PACKED.items():
                if start.startswith(mark):
                    raise ValueError(
                        f"{name} is compressed; unpack it first, such as with {program}"
                    )
            file.seek(0)
            yield file
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
