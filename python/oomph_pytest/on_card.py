"""A test with ``fits_cuda`` runs in a process of its own, on a card of its own.

Here nothing of it is set up. There pytest runs it, with its fixtures and the options of
this run, and its reports come back as they are.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from oomph import simulate
from oomph.fitting import calling, progress
from oomph.fitting.measuring import Script
from oomph.fitting.process.extent import Extent
from oomph.fitting.process.launcher import Launcher
from oomph.fitting.runs import Runs, ScriptError

from oomph_pytest import names
from oomph_pytest.markers import FitsCuda

_NOT_THERE: dict[str, Any] = {  # options that are this run's alone
    **{"simulate_gpu": None, "oomph": None, "maxfail": 0, "usepdb": False},
    **{"trace": False, "dist": "no", "numprocesses": None, "tx": [], "keyword": ""},
    **{"markexpr": "", "collectonly": False, "deselect": None, "ignore": None},
}


class OnCards:
    """Runs tests on cards, by one server of processes for the whole run."""

    def __init__(self) -> None:
        self._launcher: Launcher | None = None

    def stop(self) -> None:
        """Ends the server."""
        if self._launcher is not None:
            self._launcher.__exit__(None, None, None)
            self._launcher = None

    def reports(self, item: pytest.Item, fits: FitsCuda) -> list[pytest.TestReport]:
        """The reports of a test that is run on the card of its marker."""
        with tempfile.TemporaryDirectory(prefix="oomph-pytest-") as folder:
            path = Path(folder, "reports")
            path.touch()
            try:
                self._run(item, fits, path)
            except (ScriptError, simulate.SimulationError) as error:
                why = f"{_name(fits)}: {error}"
            else:
                why = ""
            found = [*_read(item.config, path)]
        if not why and found:
            return found
        return [*found, _failed(item, why or f"{_name(fits)}: nothing was reported")]

    def _run(self, item: pytest.Item, fits: FitsCuda, path: Path) -> None:
        simulate.check(fits.card.text)
        if self._launcher is None:
            self._launcher = Launcher()
        words = calling.words_of(partial(run, _Asked.of(item, path)))
        extent = Extent(sys.maxsize, keeps_files=False)
        script = Script.of(
            words, extent=extent, seconds=fits.seconds, settings=fits.settings
        )
        runs = Runs(self._launcher, script, progress.silent())
        runs.on(fits.card, fits.way)


def _name(fits: FitsCuda) -> str:
    return f"fits_cuda({fits.card.name!r})"


@dataclass(frozen=True)
class _Asked:
    """Which test is to run there, and how.

    Attributes:
        test: Its name, with the whole path.
        options: Those of pytest.
        known: What a worker of xdist knows.
        folder: Where pytest was started.
        reports: Where its reports go.
    """

    test: str
    options: dict[str, Any]
    known: dict[str, Any]
    folder: str
    reports: str

    @classmethod
    def of(cls, item: pytest.Item, reports: Path) -> _Asked:
        config = item.config
        options = {k: v for k, v in vars(config.option).items() if _can_travel(v)}
        options |= {k: v for k, v in _NOT_THERE.items() if k in options}
        options["rootdir"] = str(config.rootpath)
        options["inifilename"] = str(config.inipath) if config.inipath else None
        known = getattr(config, "workerinput", {"workerid": "master"})
        name = item.nodeid.partition("::")[2]
        folder = str(config.invocation_params.dir)
        return cls(f"{item.path}::{name}", options, known, folder, str(reports))


def _can_travel(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # whatever an option of another plugin raises
        return False
    return True


def _read(config: pytest.Config, path: Path) -> Iterator[pytest.TestReport]:
    with path.open("rb") as file:
        while file.peek(1):
            yield config.hook.pytest_report_from_serializable(
                config=config, data=pickle.load(file)
            )


def _failed(item: pytest.Item, text: str) -> pytest.TestReport:
    keywords = dict.fromkeys(item.keywords, 1)
    return pytest.TestReport(
        item.nodeid, item.location, keywords, "failed", text, "call"
    )


# ---- There


class _Tell:
    """Writes each report to a file."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config, self._path = config, path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Writes it."""
        data = self._config.hook.pytest_report_to_serializable(
            config=self._config, report=report
        )
        with self._path.open("ab") as file:
            pickle.dump(data, file)  # JSON would make lists of tuples


def run(asked: _Asked) -> None:
    """Runs one test in this process, as a worker of xdist would."""
    names.is_on_card = True
    os.chdir(asked.folder)
    config = pytest.Config.fromdictargs(asked.options, [asked.test])
    config.workerinput = asked.known  # type: ignore[attr-defined]  # plugins ask for it
    config.pluginmanager.register(_Tell(config, Path(asked.reports)))
    config.hook.pytest_cmdline_main(config=config)
