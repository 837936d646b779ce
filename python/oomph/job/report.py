"""A job in words and as data: its ranks side by side, what is the same said once."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from oomph.base.sizes import format_size
from oomph.base.tables import labelled
from oomph.doctor import report as doctor
from oomph.doctor.finder import Search, search
from oomph.job.files import Job, JoinedLogs, Statistics
from oomph.memory.sites import short


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _ms(value: float) -> str:
    return f"{value:.1f} ms"


def _size(value: float) -> str:
    return format_size(int(value))


_ROWS: dict[str, tuple[str, Callable[[float], str]]] = {
    "steps": ("steps", _count),
    "in tensors, peak": ("allocated_bytes.all.peak", _size),
    "device memory, peak": ("device_bytes_peak", _size),
    "host memory, peak": ("host_bytes_peak", _size),
    "blocks that fell back to the host": ("rescues", _count),
    "out-of-memory errors": ("num_ooms", _count),
    "time of the last step": ("step_ms", _ms),
}
"""By their titles: the statistic, and how it is said."""


@dataclass(frozen=True)
class Spread:
    """A statistic over ranks.

    Attributes:
        least: The smallest value.
        least_of: Whose it is: the first's that has it.
        median: That of all.
        most: The largest value.
        most_of: Whose it is: the first's that has it.
    """

    least: float
    least_of: str
    median: float
    most: float
    most_of: str

    @classmethod
    def of(cls, name: str, ranks: list[Statistics]) -> Spread:
        """That of a statistic."""
        values = [each.values.get(name, 0) for each in ranks]
        least, most = min(values), max(values)
        return cls(
            least,
            ranks[values.index(least)].who,
            statistics.median(values),
            most,
            ranks[values.index(most)].who,
        )

    def text(self, said: Callable[[float], str]) -> str:
        """In words, by how a value is said."""
        least, most = said(self.least), said(self.most)
        if least == most:
            return most
        middle = f"median {said(self.median)}"
        return f"{least} ({self.least_of}) to {most} ({self.most_of}), {middle}"


@dataclass(frozen=True)
class Leak:
    """What leaks say of several ranks in the same words.

    Attributes:
        text: That.
        whose: The ranks, or files.
    """

    text: str
    whose: list[str]


class Report:
    """All that is said of a job.

    Args:
        job: What its folder holds.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._logs = JoinedLogs(job.logs)
        self.errors: Search = search(io.BufferedReader(self._logs))

    @property
    def spreads(self) -> dict[str, Spread]:
        """By the titles of rows; those that are 0 for all are left out."""
        ranks = self.job.statistics
        found = {title: Spread.of(name, ranks) for title, (name, _) in _ROWS.items()}
        return {title: spread for title, spread in found.items() if spread.most}

    @property
    def leaks(self) -> list[Leak]:
        """What leaks, each once, in the order of ranks."""
        found: dict[str, list[str]] = {}
        seen: set[tuple[str, str]] = set()  # a file has the same for each device
        for each in self.job.statistics:
            for finding in each.values.get("leaks", {}).get("findings", ()):
                text = _said(finding)
                if (each.file, text) not in seen:
                    found.setdefault(text, []).append(each.who)
                seen.add((each.file, text))
        return [Leak(text, whose) for text, whose in found.items()]

    def text(self) -> str:
        """As lines: statistics, leaks, errors, each if there are any."""
        return "\n\n".join(
            part for part in (self._ranks(), self._leaks(), self._errors()) if part
        )

    def _ranks(self) -> str:
        ranks = self.job.statistics
        if not ranks:
            return ""
        who = _listed(each.who for each in ranks)
        rows = {
            title: spread.text(_ROWS[title][1])
            for title, spread in self.spreads.items()
        }
        if self.job.missing:
            missing = _listed(f"rank {rank}" for rank in self.job.missing)
            rows["no statistics"] = f"{missing}: killed, or still running"
        head = f"{self.job.folder}: statistics of {who}"
        return "\n".join([head, *labelled(rows.items())])

    def _leaks(self) -> str:
        return "\n".join(f"{_listed(leak.whose)}: {leak.text}" for leak in self.leaks)

    def _errors(self) -> str:
        if not self.job.logs:
            return ""
        if not self.errors.errors:
            return doctor.nothing_found(self.errors, self.job.folder)
        return doctor.text(self.errors, self._logs.place)

    def data(self) -> dict[str, Any]:
        """All of it, in types that JSON has."""
        return {
            "folder": self.job.folder,
            "statistics": [
                {"file": s.file, "rank": s.rank, "device": s.device, **s.values}
                for s in self.job.statistics
            ],
            "missing_ranks": self.job.missing,
            "spreads": {t: vars(s) for t, s in self.spreads.items()},
            "leaks": [vars(leak) for leak in self.leaks],
            "logs": [vars(log) | {"path": str(log.path)} for log in self.job.logs],
            "errors": doctor.data(self.errors, self.job.folder, self._logs.place),
        }


def _said(finding: dict[str, Any]) -> str:
    line = finding["line"]
    where = f" at {short(line['file'])}:{line['line']}" if line else ""
    growth, per = finding["growth_bytes"], finding["per"]
    grows = f", {format_size(growth)} per {per}" if growth else ""
    return f"{finding['verdict']}{where}{grows} ({finding['certainty']})"


def _listed(names: Iterable[str]) -> str:
    """Names in words: "ranks 0 to 7", or "rank 0, a.json"."""
    ranks, others = [], []
    for name in dict.fromkeys(names):
        word, _, number = name.partition(" ")
        if word == "rank" and number.isdecimal():
            ranks.append(int(number))
        else:
            others.append(name)
    return ", ".join([*([doctor.numbered("rank", ranks)] if ranks else ()), *others])
