"""The subcommand ``oomph fit``: its options, and its exit codes."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from oomph.base import script
from oomph.fitting import cards, progress
from oomph.fitting.cards import Target
from oomph.fitting.measuring import Script, Way
from oomph.fitting.process.extent import Extent
from oomph.simulate.rank import LOCAL_SIZE

_HELP = """\
Runs a Python script on simulated cards, and says on which it fits: with PyTorch's
allocator, with expandable segments, and with oomph. The script is ended after a few
steps. The exit code is 0 if it fits on all cards, 1 if it does not, 2 if the question
cannot be asked, and 3 if the script fails.
"""
FITS, TOO_SMALL, FAILED = 0, 1, 3
_INTERRUPTED, _TERMINATED = 130, 143


class Terminated(KeyboardInterrupt):
    """SIGTERM came, which ends a question as Ctrl-C does."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand to those of ``oomph``."""
    fit = commands.add_parser(
        "fit", help="say on which cards a Python script fits", description=_HELP
    )
    cards.add_to(fit)
    fit.add_argument(
        "--steps",
        type=int,
        help="stop the script after this many steps of its optimizer, or with the end "
        "of their epoch (default: 6, or more if a first look shows that a later step "
        "needs most)",
    )
    fit.add_argument(
        "--seconds",
        type=float,
        default=600,
        help="stop it after this many seconds, too (default: %(default)s)",
    )
    fit.add_argument(
        "--within",
        type=float,
        metavar="SECONDS",
        help="answer within this time, and say what was not run; the first run is not "
        "ended (default: 300, or four times as long as the first run)",
    )
    fit.add_argument(
        "--with",
        choices=[way.name.lower() for way in Way],
        default=Way.RESCUE.name.lower(),
        dest="way",
        help="with which allocator it must fit for exit code 0 (default: %(default)s, "
        "which is oomph with offload)",
    )
    fit.add_argument(
        "--vary",
        metavar="NAME=LOW..HIGH",
        help="say the largest value with which it fits each card, of an option of the "
        "script (--batch-size=1..512), an override (train.batch=8,16,32) or a variable "
        "of the environment (BATCH=1..512)",
    )
    fit.add_argument(
        "--world",
        metavar="COUNT,…",
        help="run it as one rank of this many, as torchrun would start it; oomph looks "
        "for the rank that needs most",
    )
    fit.add_argument(
        "--rank", type=int, metavar="RANK", help="with --world: run this one instead"
    )
    fit.add_argument(
        "--local-world",
        type=int,
        metavar="COUNT",
        help=f"with --world: ranks on each machine (default: {LOCAL_SIZE})",
    )
    add_settings(fit)
    fit.add_argument(
        "--brief",
        action="store_true",
        help="say only on which cards it fits; the smallest ones and what would help "
        "take longest to find",
    )
    fit.add_argument("--json", action="store_true", help="write all as JSON")
    script.add_to(fit)


def add_settings(command: argparse.ArgumentParser) -> None:
    """Adds the option ``--set``."""
    command.add_argument(
        "--set",
        action="append",
        metavar="KEY:VALUE,…",
        default=[],
        dest="settings",
        help="settings of oomph besides offload, as for oomph run",
    )


def joined(arguments: Sequence[str]) -> list[str]:
    """A command line in which argparse takes ``--vary --batch=1..8`` for one option."""
    found = list(arguments)
    if found[:1] == ["fit"] and "--vary" in found[:-1]:
        place = found.index("--vary")
        found[place : place + 2] = [f"--vary={found[place + 1]}"]
    return found


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM raises :class:`Terminated` meanwhile, so that nothing is left behind."""

    def end(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def code_of(interrupt: KeyboardInterrupt) -> int:
    """The exit code after Ctrl-C or SIGTERM."""
    return _TERMINATED if isinstance(interrupt, Terminated) else _INTERRUPTED


def run(options: argparse.Namespace) -> int:
    """Answers; gives the exit code.

    Raises:
        ValueError: The question cannot be asked; the text says why.
    """
    from oomph.fitting.runs import ScriptError  # other commands need none of it

    asked, targets = _script(options), cards.targets(options.gpu, options.host)
    if options.world is None and (options.rank, options.local_world) != (None, None):
        raise ValueError("--rank and --local-world need a world: add --world COUNT")
    if options.world is not None and options.vary is not None:
        raise ValueError("--world and --vary: give one of them")
    try:
        with ended_by_signals():
            text, data, fits = _answer(options, asked, targets)
    except ScriptError as error:
        print(f"oomph: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt as interrupt:
        return code_of(interrupt)
    print(json.dumps(data, indent=1) if options.json else text, flush=True)
    return FITS if fits else TOO_SMALL


def _script(options: argparse.Namespace) -> Script:
    words = [*["-m"] * options.module, options.script, *options.args]
    return Script.of(
        words,
        settings=",".join(options.settings),
        seconds=options.seconds,
        extent=Extent.of(options.steps),
    )


def _answer(
    options: argparse.Namespace, asked: Script, targets: list[Target]
) -> tuple[str, dict[str, Any], bool]:
    """The answer as text and as data, and whether it is yes."""
    from oomph.fitting import answers, report, varying

    if options.world is not None:
        return _answer_for_worlds(options, asked)
    if options.vary is None:
        say = progress.to_terminal()
        found = answers.find(
            asked, targets, say, brief=options.brief, within_s=options.within
        )
        return found.table(), report.data(found), found.fits(options.way)
    option = varying.parse(options.vary)
    way = Way.named(options.way)
    varied = answers.find_largest(
        asked, targets, option, progress.to_terminal(), options.within
    )
    largest = [each.value for each in varied.largest if each.way is way]
    fits = None not in largest
    return report.text_of_largest(varied), report.data_of_largest(varied), fits


def _answer_for_worlds(
    options: argparse.Namespace, asked: Script
) -> tuple[str, dict[str, Any], bool]:
    from oomph.fitting import worlds

    asked_worlds = [
        worlds.World(size, options.local_world or LOCAL_SIZE, options.rank)
        for size in worlds.sizes(options.world)
    ]
    found = [
        worlds.find(
            asked,
            options.gpu,
            options.host,
            each,
            progress.to_terminal(),
            options.brief,
            options.within,
        )
        for each in asked_worlds
    ]
    text = "\n\n".join(each.table() for each in found)
    fits = all(each.fit.fits(options.way) for each in found)
    return text, {"worlds": [each.data() for each in found]}, fits
