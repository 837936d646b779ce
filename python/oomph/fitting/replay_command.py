"""The subcommand ``oomph replay``: a trace, asked of allocators on simulated cards."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from oomph.fitting import cards, progress
from oomph.fitting.command import (
    FAILED,
    FITS,
    TOO_SMALL,
    add_settings,
    code_of,
    ended_by_signals,
)
from oomph.fitting.measuring import Script, Way
from oomph.setup.places import temporary_folder

_HELP = """\
Asks allocators on simulated cards for what a program asked for, as a trace of oomph run
--trace has it, a snapshot of PyTorch, or a log of RMM. The exit code is 0 if it fits on
all cards, 1 if it does not, 2 if the question cannot be asked, and 4 if the file is
damaged.
"""
DAMAGED = 4
_ALL_STEPS = 1 << 30


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand to those of ``oomph``."""
    replay = commands.add_parser(
        "replay", help="say on which cards a trace fits", description=_HELP
    )
    replay.add_argument("file", help="the trace, snapshot or log")
    cards.add_to(replay)
    replay.add_argument(
        "--allocator",
        choices=[way.name.lower() for way in Way],
        default=Way.RESCUE.name.lower(),
        dest="way",
        help="with which allocator it must fit for exit code 0 (default: %(default)s)",
    )
    add_settings(replay)
    replay.add_argument("--json", action="store_true", help="write all as JSON")


def run(options: argparse.Namespace) -> int:
    """Answers; gives the exit code.

    Raises:
        ValueError: The question cannot be asked; the text says why.
    """
    from oomph.fitting import answers, report
    from oomph.fitting.process.extent import Extent
    from oomph.fitting.runs import ScriptError
    from oomph.traces import format, reading

    with temporary_folder("replay") as folder:
        try:
            trace = reading.read(Path(options.file))
            keys = [f"devices={trace.devices}"] if trace.devices > 1 else []
            targets = cards.targets(options.gpu, options.host, *keys)
            packed = Path(folder, "trace")
            format.write(packed, trace)
            asked = Script(
                "oomph.traces.play",
                (str(packed),),
                module=True,
                settings=",".join(options.settings),
                extent=Extent(steps=_ALL_STEPS),
            )
            with ended_by_signals():
                say = progress.to_terminal()
                found = answers.find(asked, targets, say, is_trace=True)
        except format.TraceError as error:
            print(f"oomph: {error}", file=sys.stderr)
            return DAMAGED
        except ScriptError as error:
            _, is_damaged, reason = error.record.output.rpartition("TraceError: ")
            if not is_damaged:
                print(f"oomph: {error}", file=sys.stderr)
                return FAILED
            said = f"oomph: {options.file}: the file is damaged: {reason}"
            print(said, file=sys.stderr)
            return DAMAGED
        except KeyboardInterrupt as interrupt:
            return code_of(interrupt)
    output = report.data(found) if options.json else report.text_of_replay(found)
    print(json.dumps(output, indent=1) if options.json else output, flush=True)
    return FITS if found.fits(options.way) else TOO_SMALL
