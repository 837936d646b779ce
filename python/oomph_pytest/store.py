"""Runs in files, and by how much a figure may grow from one to another."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from oomph.base.sizes import format_size, parse_size

VERSION = 1  # of the files


def _size(text: str) -> float:
    return parse_size(text, binary=True)


def _share(value: float) -> str:
    return f"{value:.2%}"


@dataclass(frozen=True)
class Figure:
    """A figure that the fixture measures: how it is read, shown, and called in JSON."""

    key: str
    read: Callable[[str], float]
    show: Callable[[float], str]


FIGURES = {
    "peak": Figure("peak_bytes", _size, format_size),
    "reserved": Figure("reserved_bytes", _size, format_size),
    "fragmentation": Figure("fragmentation", float, _share),
    "host": Figure("host_bytes", _size, format_size),
    "rescues": Figure("rescues", int, str),
    "left": Figure("left_bytes", _size, format_size),
}


@dataclass(frozen=True)
class Allowance:
    """By how much a figure may differ: a share of it, or an amount."""

    share: float
    amount: float
    text: str

    @classmethod
    def parse(cls, value: object, read: Callable[[str], float]) -> Allowance:
        """Reads ``5%`` or an amount.

        Raises:
            ValueError: It is neither.
        """
        text = str(value).strip()
        if text.endswith("%"):
            share, amount = _number(text[:-1]) / 100, 0.0
        else:
            share, amount = 0.0, read(text)
        if not (0 <= share < float("inf") and 0 <= amount < float("inf")):
            raise ValueError(f"{text!r} is not 0 or more")
        return cls(share, amount, text)

    def of(self, value: float) -> float:
        """The amount that is allowed where the figure was this."""
        return self.share * value + self.amount

    def __str__(self) -> str:
        return self.text


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


@dataclass(frozen=True)
class Rule:
    """One --cuda-memory-fail: a figure, and by how much it may grow."""

    name: str
    allowance: Allowance

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Reads ``peak:5%``.

        Raises:
            ValueError: There is no such figure, or its growth makes no sense.
        """
        name, colon, growth = text.partition(":")
        if name not in FIGURES or not colon:
            raise ValueError(
                f"{text!r} is not FIGURE:GROWTH, such as peak:5%; the figures are "
                f"{', '.join(FIGURES)}"
            )
        try:
            return cls(name, Allowance.parse(growth, FIGURES[name].read))
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from None

    def problem(
        self, now: dict[str, float], before: dict[str, float], run: str
    ) -> str | None:
        """What is wrong, in a sentence; None if the figure did not grow by more."""
        figure = FIGURES[self.name]
        value, old = now[figure.key], before[figure.key]
        if value <= old + self.allowance.of(old):
            return None
        return (
            f"GPU memory: {self.name} was {figure.show(old)} in run {run}, now it is "
            f"{figure.show(value)} ({growth(value, old)}; --cuda-memory-fail allows "
            f"{self.allowance})"
        )


def growth(value: float, old: float) -> str:
    """A change, in per cent where that can be said."""
    if value == old:
        return "="
    return f"{value / old - 1:+.2%}" if old else "new"


# ---- Stored runs


@dataclass(frozen=True)
class StoredRun:
    """A run that was stored: its name and what is in its file."""

    name: str
    content: dict[str, Any]

    def test(self, nodeid: str) -> dict[str, Any]:
        """What it has of a test; empty if nothing."""
        found: dict[str, Any] = self.content["tests"].get(nodeid, {})
        return found


_RULES = pytest.StashKey[list[Rule]]()
_COMPARED = pytest.StashKey["StoredRun | None"]()
_BASELINE = pytest.StashKey["StoredRun | None"]()


def folder(config: pytest.Config) -> Path:
    """Where runs are stored."""
    return config.rootpath / str(config.option.cuda_memory_storage)


def _stored(config: pytest.Config) -> list[Path]:
    """The files of stored runs, the newest last."""
    return sorted(
        (p for p in folder(config).glob("*.json") if re.match(r"\d{4,}", p.name)),
        key=lambda path: (int(re.split(r"\D", path.name)[0]), path.name),
    )


def _find(config: pytest.Config, wanted: str) -> Path | None:
    """The file of a run: its number, its name, both, or a path; empty: the newest."""
    stored = _stored(config)
    if not wanted:
        return stored[-1] if stored else None
    for path in reversed(stored):
        number, _, name = path.stem.partition("_")
        is_number = wanted.isdigit() and int(wanted) == int(number)
        if is_number or wanted in (name, path.stem):
            return path
    path = config.rootpath / wanted
    return path if path.suffix == ".json" and path.is_file() else None


def _read(path: Path) -> StoredRun:
    try:
        content = json.loads(path.read_text())
        if content["version"] != VERSION or not isinstance(content["tests"], dict):
            raise ValueError("another version wrote it")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise pytest.UsageError(
            f"{path} is not a stored run of GPU memory: {error}"
        ) from None
    return StoredRun(path.stem, content)


def check_options(config: pytest.Config) -> None:
    """Reads the options: the run that is compared with, what may not grow, the name.

    Raises:
        pytest.UsageError: There is no such run or figure, or the name is none.
    """
    option = config.option
    name = option.cuda_memory_save
    if name and not re.fullmatch(r"[\w.-]+", name):
        raise pytest.UsageError(f"--cuda-memory-save: {name!r} is not a name for a run")
    try:
        config.stash[_RULES] = [Rule.parse(text) for text in option.cuda_memory_fail]
    except ValueError as error:
        raise pytest.UsageError(f"--cuda-memory-fail: {error}") from None
    if option.cuda_memory_compare is None and not option.cuda_memory_fail:
        return
    wanted = option.cuda_memory_compare or ""
    path = _find(config, wanted)
    if path is None and (wanted or name is None):
        names = ", ".join(path.stem for path in _stored(config)) or "none"
        raise pytest.UsageError(
            f"--cuda-memory-compare: there is no stored run {wanted}".rstrip()
            + f" in {folder(config)} (stored: {names}); --cuda-memory-save stores one"
        )
    config.stash[_COMPARED] = None if path is None else _read(path)


def rules(config: pytest.Config) -> list[Rule]:
    """Which figures may not grow."""
    return config.stash.get(_RULES, [])


def compared(config: pytest.Config) -> StoredRun | None:
    """The run that figures are compared with; None if none is asked for, or stored."""
    return config.stash.get(_COMPARED, None)


def baseline(config: pytest.Config) -> StoredRun | None:
    """The run that metrics are compared with: that one, or else the newest."""
    if _COMPARED in config.stash:
        return config.stash[_COMPARED]
    if _BASELINE not in config.stash:
        path = _find(config, "")
        config.stash[_BASELINE] = None if path is None else _read(path)
    return config.stash[_BASELINE]


def save(config: pytest.Config, content: dict[str, Any]) -> Path:
    """Stores a run under the next number."""
    stored = _stored(config)
    number = 1 + (int(re.split(r"\D", stored[-1].name)[0]) if stored else 0)
    name = config.option.cuda_memory_save
    path = folder(config) / (f"{number:04}" + (f"_{name}" if name else "") + ".json")
    write(path, content)
    return path


def write(path: Path, content: dict[str, Any]) -> None:
    """Writes the file of a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    whole = {"version": VERSION, "date": date, **content}
    path.write_text(json.dumps(whole, indent=1) + "\n")
