"""The command ``oomph``: runs scripts, says what fits, explains logs, and more."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from oomph import settings, simulate
from oomph.base import script
from oomph.base.sizes import parse_size
from oomph.doctor import command as doctor
from oomph.fitting import command as fit
from oomph.fitting import replay_command as replay
from oomph.job import command as job
from oomph.setup import environment, places
from oomph.simulate import rank as ranks

_RUN_HELP = """\
Runs a Python script with oomph as PyTorch's CUDA allocator. The script needs no
change. Processes that it starts use oomph, too. The command exits with the script's
exit code.
"""

_SIMULATE_HELP = """\
use a simulated GPU: SIZE or a card's name [,devices=N][,host=SIZE][,link=SPEED]
[,fabric=SPEED][,cc=X.Y][,gpu=NAME], such as 12GiB,host=128GiB,link=25GB/s,cc=9.0 or
rtx4090,host=64GiB
"""


class UsageError(ValueError):
    """The command line cannot be carried out; the text says why."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="oomph",
        description="A CUDA memory allocator for PyTorch that continues in host memory "
        "when the GPU is full.",
    )
    parser.add_argument(
        "--version",
        action="store_true",
        help="show the versions of oomph, PyTorch and the driver, and what works here",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    run = commands.add_parser(
        "run", help="run a Python script under oomph", description=_RUN_HELP
    )
    run.add_argument("--simulate", metavar="CARD", help=_SIMULATE_HELP)
    depth = run.add_mutually_exclusive_group()
    depth.add_argument(
        "--shapes",
        action="store_true",
        help="with --simulate: only sizes, kernels compute nothing (the default)",
    )
    depth.add_argument(
        "--values",
        action="store_true",
        help="with --simulate: compute values on the CPU, for small models",
    )
    run.add_argument(
        "--world",
        type=int,
        metavar="COUNT",
        help="with --simulate: run one rank of so many, as torchrun would start it; "
        "the others do not exist, and it gets its own data in place of theirs",
    )
    run.add_argument(
        "--rank", type=int, default=0, help="with --world: which one (default: 0)"
    )
    run.add_argument(
        "--local-world",
        type=int,
        default=ranks.LOCAL_SIZE,
        metavar="COUNT",
        help="with --world: ranks on each machine (default: %(default)s)",
    )
    run.add_argument(
        "--allocator",
        choices=("oomph", "native", "expandable"),
        default="oomph",
        help="the allocator: oomph (default), PyTorch's own (native), or PyTorch's own "
        "with expandable segments",
    )
    run.add_argument(
        "--device-limit",
        metavar="SIZE",
        help="the most device memory that the allocator may take, such as 12GiB",
    )
    run.add_argument(
        "--set",
        action="append",
        metavar="KEY:VALUE,…",
        default=[],
        dest="settings",
        help="settings of oomph, may be repeated: " + ", ".join(settings.SETTINGS),
    )
    run.add_argument(
        "--stats",
        metavar="FILE",
        help="write statistics of every device as JSON when the process ends",
    )
    run.add_argument(
        "--trace",
        metavar="FILE",
        help="write all that the script asks of the allocator, for oomph replay",
    )
    script.add_to(run)
    doctor.add_to(commands)
    job.add_to(commands)
    fit.add_to(commands)
    replay.add_to(commands)
    return parser


def _settings_string(options: argparse.Namespace) -> str:
    values = settings.parse(",".join(options.settings))
    pairs = list(options.settings)
    if options.device_limit is not None:
        if "device_limit" in values:
            raise UsageError("--device-limit and --set device_limit: give one of them")
        pairs.append(f"device_limit:{options.device_limit}")
    if "offload" not in values:
        pairs.append("offload:auto")
    text = ",".join(pairs)
    settings.parse(text)
    return text


def _allocator_environment(options: argparse.Namespace) -> dict[str, str]:
    if options.allocator == "oomph":
        return {settings.VARIABLE: _settings_string(options)}
    if options.settings:
        raise UsageError(
            "--set is for oomph; PyTorch's allocator has PYTORCH_ALLOC_CONF"
        )
    chosen = {settings.VARIABLE: ""}
    if options.allocator == "expandable":
        chosen["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    if options.device_limit is not None:
        chosen[environment.NATIVE_LIMIT] = str(parse_size(options.device_limit))
    return chosen


def _run_environment(options: argparse.Namespace) -> dict[str, str]:
    """The variables that make the script run as asked."""
    variables = _allocator_environment(options)
    if options.simulate is not None:
        card = options.simulate + (",memory=values" if options.values else "")
        simulate.check(card)
        if options.world is not None:
            rank = ranks.Rank(options.rank, options.world, options.local_world)
            card = ranks.with_devices(card, rank.devices)
            variables |= rank.variables()
        variables[simulate.VARIABLE] = card
    elif options.shapes or options.values or options.world is not None:
        wanted = "--shapes" if options.shapes else "--values"
        wanted = wanted if options.world is None else "--world"
        raise UsageError(f"{wanted} needs a simulated GPU: add --simulate CARD")
    if options.world is None and options.rank != 0:
        raise UsageError("--rank needs a world: add --world COUNT")
    for variable, option in (
        (environment.STATS, "stats"),
        (environment.TRACE, "trace"),
    ):
        file = getattr(options, option)
        if file is None:
            continue
        folder = os.path.dirname(os.path.abspath(file))
        if not os.path.isdir(folder):
            raise UsageError(f"--{option}: there is no folder {folder}")
        # The script keeps this process's number (see run), so that it knows itself.
        variables[variable] = f"{os.getpid()}:{os.path.abspath(file)}"
    return variables


def _flags() -> list[str]:
    """The options of Python itself that this process was started with."""
    import subprocess

    unbuffered = ["-u"] if getattr(sys.stdout, "write_through", False) else []
    # As multiprocessing has it for its children.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [*unbuffered, *flags]


def _tool_that_watches() -> str | None:
    """A debugger, profiler or coverage that would lose what it watches."""
    if os.execve.__module__ != "posix":
        return None  # a debugger follows
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    tools = [monitoring.get_tool(number) for number in range(6)] if monitoring else []
    hooks = [hook for hook in (sys.gettrace(), sys.getprofile()) if hook is not None]
    names = [getattr(hook, "__module__", type(hook).__module__) for hook in hooks]
    name = next((name for name in [*tools, *names] if name), None)
    spec = getattr(sys.modules["__main__"], "__spec__", None)  # of python -m cProfile
    return spec.name if name == "__main__" and spec is not None else name


def run(options: argparse.Namespace) -> int:
    """Becomes the script: replaces this process by a Python that runs it."""
    if not (options.module or options.script == "-" or os.path.exists(options.script)):
        raise UsageError(f"there is no file {options.script}")
    tool = _tool_that_watches()
    if tool is not None:
        raise UsageError(
            f"{tool} cannot follow the script, because oomph run replaces this "
            "process: start it after oomph run (oomph run -m coverage run train.py), "
            f"or without oomph run, with {settings.VARIABLE}=offload:auto in the "
            "environment"
        )
    variables = {**places.search_path(), **_run_environment(options)}
    target = ["-m", options.script] if options.module else [options.script]
    command = [sys.executable, *_flags(), *target, *options.args]
    _flush()
    os.execve(sys.executable, command, {**os.environ, **variables})


_COMMANDS = {
    "run": run,
    "doctor": doctor.run,
    "report": job.run,
    "fit": fit.run,
    "replay": replay.run,
}


def _streams() -> list[TextIO]:
    """Of the output; those that are closed are None."""
    return [stream for stream in (sys.stdout, sys.stderr) if stream is not None]


def _flush() -> None:
    for stream in _streams():
        stream.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; gives the exit code."""
    for stream in _streams():
        if isinstance(stream, io.TextIOWrapper):  # a path may have any letters
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            return _main(arguments)
        finally:
            _flush()
    except BrokenPipeError:  # whoever read has seen enough
        _discard_output()
        return 1
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _discard_output()
        print("oomph: no space is left for the output", file=sys.stderr)
        return 1


def _discard_output() -> None:
    """Lets Python end without another try to write what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _main(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    options = parser.parse_args(
        fit.joined(sys.argv[1:] if arguments is None else arguments)
    )
    if options.version:
        from oomph.setup import versions

        print(versions.report())
        return 0
    if options.command is None:
        parser.print_help()
        return 2
    try:
        if options.command in ("run", "fit"):
            places.name_other()
        return _COMMANDS[options.command](options)
    except (ValueError, simulate.SimulationError) as error:
        print(f"oomph: {error}", file=sys.stderr)
        return 2
