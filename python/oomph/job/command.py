"""The subcommand ``oomph report``: its options, and its exit codes."""

from __future__ import annotations

import argparse
import json

_HELP = """\
Says what the ranks of a job have left in a folder: their statistics side by side
(oomph run --stats), leaks, and the out-of-memory errors of their logs, each once with
the ranks that had it. It reads only that folder, and needs no GPU. The exit code is 0,
and 2 if there is nothing to read.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand to those of ``oomph``."""
    report = commands.add_parser(
        "report", help="merge what the ranks of a job say", description=_HELP
    )
    report.add_argument("--json", action="store_true", help="write all as JSON")
    report.add_argument(
        "folder",
        metavar="DIR",
        help="with the files of --stats and the logs, such as torchrun's --log-dir",
    )


def run(options: argparse.Namespace) -> int:
    """Reports; gives the exit code.

    Raises:
        ValueError: There is nothing to read; the text says why.
    """
    from oomph.job import files, report  # other commands need no patterns

    found = report.Report(files.find(options.folder))
    said = json.dumps(found.data(), indent=1) if options.json else found.text()
    print(said, flush=True)
    return 0
