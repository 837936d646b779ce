"""Runs a script on a simulated card, in a process of its own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from oomph import settings, simulate
from oomph.base.script import check_script
from oomph.fitting.process import forking
from oomph.fitting.process.extent import Extent
from oomph.fitting.process.launcher import Job, Launcher
from oomph.fitting.process.record import CHILD, SO_FAR, USED, Ending, Record
from oomph.setup import environment
from oomph.setup.places import temporary_folder
from oomph.simulate import users

_LOOK_S = 0.05
_GRACE_S = 5.0  # for what a script does at its end, once all was seen
_LATER_S = 20.0  # for what follows an epoch, or as long as it took until then
_TAIL_BYTES = 4000  # of what it printed


class Way(Enum):
    """Who gives out the memory of the card; the value is what it is called."""

    NATIVE = "PyTorch"
    EXPANDABLE = "expandable segments"
    OOMPH = "oomph without offload"
    RESCUE = "oomph"

    @classmethod
    def named(cls, name: str) -> Way:
        """The way of a name.

        Args:
            name: One of ``"native"``, ``"expandable"``, ``"oomph"``, ``"rescue"``.

        Raises:
            ValueError: It is none of these.
        """
        if name.upper() not in cls.__members__:
            known = ", ".join(way.name.lower() for way in cls)
            raise ValueError(f"there is no way {name!r}; there are {known}")
        return cls[name.upper()]


_VARIABLES: dict[Way, dict[str, str]] = {
    Way.NATIVE: {settings.VARIABLE: "", forking.PYTORCH: ""},
    Way.EXPANDABLE: {
        settings.VARIABLE: "",
        forking.PYTORCH: "expandable_segments:True",
    },
    Way.OOMPH: {settings.VARIABLE: "required:yes,offload:off"},
    Way.RESCUE: {settings.VARIABLE: "required:yes,offload:auto"},
}


@dataclass(frozen=True)
class Script:
    """What is run.

    Raises:
        ValueError: An option makes no sense.

    Attributes:
        target: Path of a script, or the name of a module.
        arguments: Its own.
        module: Whether it is a module.
        variables: Of the environment, besides those that there are.
        settings: Of oomph, besides those of the way.
        seconds: After so many it is ended.
        extent: What of it is to be seen.
    """

    target: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    settings: str = ""
    seconds: float = 600.0
    extent: Extent = field(default_factory=Extent)

    def __post_init__(self) -> None:
        if self.extent.steps < 1 or not self.seconds > 0:
            raise ValueError("steps and seconds must be more than 0")
        if {"offload", "required"} & settings.parse(self.settings).keys():
            raise ValueError("settings: each way sets offload and required itself")

    @classmethod
    def of(cls, words: Sequence[str], **options: Any) -> Script:
        """The script of a command line, without the word ``python``.

        Args:
            words: A path, or ``-m`` and a module's name; then its arguments.
            options: The other attributes.

        Raises:
            ValueError: There is no such script, or an option makes no sense.
        """
        is_module = words[:1] == ["-m"]
        target, *arguments = words[is_module:] or [""]
        if not is_module:
            check_script(target)
        return cls(target, tuple(arguments), is_module, **options)


@dataclass(frozen=True)
class Place:
    """Where a script runs.

    Attributes:
        card: The simulated card.
        way: Who gives out its memory.
        limits: Settings of oomph besides.
        forecasts: Whether an out-of-memory error is to say what a whole step comes to,
            and what would help, which takes long.
    """

    card: str
    way: Way
    limits: str = ""
    forecasts: bool = False
    has_more: bool = False

    def variables(self, more: str) -> dict[str, str]:
        """What the environment says of it; more settings of oomph besides."""
        found = {**_VARIABLES[self.way], **environment.said(self.card)}
        if found[settings.VARIABLE]:
            known = settings.parse(more)
            limits = self.limits if self.limits.partition(":")[0] not in known else ""
            pairs = (found[settings.VARIABLE], limits, more)
            found[settings.VARIABLE] = ",".join(filter(None, pairs))
        return {**found, simulate.VARIABLE: self.card}

    def first(self, script: Script) -> Place:
        """Where a run of the script may begin that is here from its first use of a GPU.

        oomph can be taken away until then. What settings say, to oomph or to PyTorch's
        allocator, counts from the start.
        """
        if self.way in (Way.OOMPH, Way.RESCUE):
            return self
        set_for_pytorch = {forking.PYTORCH, forking.OLD_PYTORCH} & {
            *script.variables,
            *os.environ,
        }
        is_set = script.settings or set_for_pytorch
        return Place(self.card, Way.NATIVE if is_set else Way.OOMPH)

    def beginning(self, more: str) -> Hashable:
        """What a script can know of it before it uses a GPU."""
        card = simulate.parse_card(self.card)
        driver = [key for key in self.card.split(",") if "driver=" in key]
        known = settings.parse(more).keys() & {"recompute", "batch_finder"}
        is_oomph = self.way in (Way.OOMPH, Way.RESCUE)
        way = self.way.value if is_oomph and known else ""
        return is_oomph, way, card.devices, card.has_rates, card.has_values, *driver


def measure(
    launcher: Launcher, script: Script, place: Place, stop: Callable[[], bool]
) -> Record:
    """Runs a script until its steps are seen, it ends, or its time is up.

    Args:
        launcher: What starts processes.
        script: What to run.
        place: Where to.
        stop: Whether to end it.
    """
    first = place.first(script)
    record, is_fork = _run(launcher, script, place, stop, first)
    differs = is_fork or record.unwritten_bytes > 0 or record.without_weights
    answers = not script.extent.is_whole or script.extent.until
    if differs and record.failed and answers and not stop():
        record, _ = _run(launcher, script, place, stop, None)  # as it would run alone
    return record


def _run(
    launcher: Launcher,
    script: Script,
    place: Place,
    stop: Callable[[], bool],
    first: Place | None,
) -> tuple[Record, bool]:
    """What a run shows, and whether it went on where another had waited."""
    variables = tuple(script.variables.items())
    begin = first and (
        first.beginning(script.settings),
        *(script.target, script.arguments, variables),
    )

    def environment_of(where: Place) -> dict[str, str]:
        return {**where.variables(script.settings), **script.variables}

    with temporary_folder("fit") as folder:
        path, output = Path(folder, "record.json"), Path(folder, "output")
        so_far = path.with_suffix(SO_FAR)
        process = launcher.start(
            {
                "output": str(output),
                "environment": environment_of(place),
                "first_environment": environment_of(first or place),  # if it may wait
                "record": str(path),
                "begin_s": launcher.began_s,
                "forecasts": place.forecasts,
                "extent": asdict(script.extent),
                "writes_weights": first is None,
                "module": script.module,
                "target": script.target,
                "arguments": script.arguments,
            },
            begin,
        )
        try:
            in_time = _wait(process, path, script, stop)
        finally:
            process.kill()
        text = _tail(output)
        if path.exists() or so_far.exists():
            record = _read(path if path.exists() else so_far, text)
        else:
            ending: Ending = "error" if in_time else "time"
            used = Path(folder, USED).exists()
            code = process.code or 1
            record = Record(ending, code, used_gpu=used, output=text)
        children = [*Path(folder).glob(f"*{CHILD}")]
        record = record.with_children([_read(path, text) for path in children])
        users_of = {path.stem for path in Path(folder).glob(f"*{users.SUFFIX}")}
        unseen = len(users_of - {path.stem for path in children})
        record = replace(record, unseen=unseen)
    return record, process.is_fork


def _read(path: Path, output: str) -> Record:
    return replace(Record(**json.loads(path.read_text())), output=output)


def _tail(output: Path) -> str:
    """The last of what a script printed; "": it was ended before it could."""
    if not output.exists():
        return ""
    with open(output, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return file.read().decode(errors="replace").strip()


def _wait(process: Job, path: Path, script: Script, stop: Callable[[], bool]) -> bool:
    """Whether it ended in time, or all was seen and it had time to end."""
    process.started.wait()  # the server may be importing PyTorch
    begin = time.monotonic()
    end, so_far = begin + script.seconds, path.with_suffix(SO_FAR)
    has_steps = script.extent.is_whole  # and goes on
    while not process.ended.wait(_LOOK_S) and not stop():
        now = time.monotonic()
        if not has_steps and so_far.exists():
            has_steps = True
            end = min(end, now + max(_LATER_S, now - begin))
        if path.exists():
            end = min(end, now + _GRACE_S)
        if now > end:
            return path.exists() or so_far.exists()
    return True
